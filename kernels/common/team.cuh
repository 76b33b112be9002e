// Blocks, or parts of them, that each have some elements of a row and all want its statistics, while all are resident.
#pragma once

#include "common/grid_ptx.cuh"
#include "common/parts.cuh"

// The members of a team, as one of them sees them.
struct TeamMail {
    uint4* mail;  // [2][places], zero before the first launch
    int places;   // members of all teams
    int first;    // of them, of this team
    int size;
    int rank;

    __device__ __forceinline__ uint4* place(unsigned turn, int member) const {
        return mail + turn % 2 * places + first + member;
    }

    __device__ __forceinline__ void post(const Part& part, unsigned turn) const {
        post_words(place(turn, rank), part.pivot, part.sum, part.squares, turn);
    }

    // What the team has found of its row, in all lanes of the warp that calls it. MANY: members that a lane waits for, at
    // most; count(member): elements that it holds.
    template <int NORM, int MANY, typename Count>
    __device__ __forceinline__ Part of_team(unsigned turn, const Count& count) const {
        const int lane = threadIdx.x % 32, many = (size - lane + 31) / 32;
        float pivot[MANY] = {}, sum[MANY] = {}, squares[MANY] = {};
        await_words(place(turn, lane), 32, many, turn, pivot, sum, squares);
        Part parts[MANY];
#pragma unroll
        for (int k = 0; k < MANY; ++k) parts[k] = {k < many ? count(lane + 32 * k) : 0.0f, pivot[k], sum[k], squares[k]};
        return merged<NORM>(parts);
    }
};
