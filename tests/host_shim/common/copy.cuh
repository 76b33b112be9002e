// A copy that was asked for and not yet made; only for this folder's own headers.
#pragma once

namespace host {

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;

    // BYTES: of which both addresses are a multiple.
    template <int BYTES>
    static Copy of(void* to, const void* from, std::size_t bytes) {
        for (const void* place : {static_cast<const void*>(to), from}) {
            if (reinterpret_cast<std::uintptr_t>(place) % BYTES) throw std::logic_error("a copy off its alignment");
        }
        return {to, from, bytes};
    }

    void make() const { std::memcpy(to, from, bytes); }
};

}  // namespace host
