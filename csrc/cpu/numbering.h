// A look-up table of host rows.
#pragma once

#include <cstdint>
#include <vector>

#include "common/hash.h"

namespace hisparse::cpu {

// Numbers distinct host rows in the order they come.
class Numbering {
 public:
  void clear(int64_t keys) {
    bits_ = hash_bits(keys);
    keys_.assign(size_t{1} << bits_, kNone);
    numbers_.resize(keys_.size());
  }

  // The number of `key`; `next` if it is new.
  int32_t add(int32_t key, int32_t next) {
    const uint32_t place = find_place(key);
    if (keys_[place] == kNone) {
      keys_[place] = key;
      numbers_[place] = next;
    }
    return numbers_[place];
  }

  int32_t find(int32_t key) const {
    const uint32_t place = find_place(key);
    return keys_[place] == kNone ? kNone : numbers_[place];
  }

 private:
  uint32_t find_place(int32_t key) const {
    uint32_t place = hash_start(key, bits_);
    while (keys_[place] != kNone && keys_[place] != key) place = hash_next(place, bits_);
    return place;
  }

  int bits_ = 0;
  std::vector<int32_t> keys_, numbers_;
};

}  // namespace hisparse::cpu
