from normbench.cli import main

raise SystemExit(main())
