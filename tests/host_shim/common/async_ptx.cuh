// The same functions without PTX. A copy is made as late as it may be: when its batch is waited for.
#pragma once

#include <deque>

#include "common/memory.cuh"

namespace host {

struct Copy {
    uint4* to;
    const uint4* from;
};

using Batch = std::vector<Copy>;

inline std::map<std::pair<const Block*, unsigned>, std::deque<Batch>> batches;  // by thread; the last one is being filled

inline std::deque<Batch>& batches_here() {
    std::deque<Batch>& mine = batches[{block, block->current}];
    if (mine.empty()) mine.emplace_back();
    return mine;
}

}  // namespace host

inline void copy_ahead(uint4* to, const uint4* from) { host::batches_here().back().push_back({aligned(to), aligned(from)}); }

inline void copies_begun() { host::batches_here().emplace_back(); }

inline void copies_awaited(int pending) {
    std::deque<host::Batch>& mine = host::batches_here();
    for (; static_cast<int>(mine.size()) > pending + 1; mine.pop_front()) {
        for (const host::Copy& copy : mine.front()) *copy.to = *copy.from;
    }
}

inline void bring_to_l2(const void*) {}
