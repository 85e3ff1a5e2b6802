#include "text/vocabulary.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"

namespace spate {
namespace {

uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const Uint128 product = static_cast<Uint128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr size_t kMaxArenaBytes = size_t{1} << 31;

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15u ^ bytes.size();
  size_t pos = 0;
  uint64_t word = 0;
  for (; pos + 8 <= bytes.size(); pos += 8) {
    std::memcpy(&word, bytes.data() + pos, 8);
    hash = multiply_fold(hash ^ word, 0xD6E8FEB86659FD93u);
  }
  word = 0;
  std::memcpy(&word, bytes.data() + pos, bytes.size() - pos);
  return multiply_fold(hash ^ word, 0xA0761D6478BD642Fu);
}

void StringIdMap::reserve(size_t num_strings) {
  const size_t wanted = std::bit_ceil(num_strings + num_strings / 2 + 16);
  if (wanted <= slots_.size()) return;
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(wanted, Slot{});
  for (const Slot& slot : old) {
    if (slot.id == kNoToken) continue;
    size_t i = slot.hash & (wanted - 1);
    while (slots_[i].id != kNoToken) i = (i + 1) & (wanted - 1);
    slots_[i] = slot;
  }
}

void StringIdMap::grow() { reserve(slots_.size()); }

void StringIdMap::assign(std::string_view text, int32_t id) {
  if ((num_strings_ + 1) * 3 > slots_.size() * 2) grow();
  CHECK(arena_.size() + text.size() < kMaxArenaBytes, "vocabulary of more than 2 GiB");
  const auto hash = static_cast<uint32_t>(hash_bytes(text));
  for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    Slot& slot = slots_[i];
    if (slot.id == kNoToken) {
      slot = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size()), hash, id};
      arena_ += text;
      ++num_strings_;
      return;
    }
    if (slot.hash == hash && std::string_view(arena_).substr(slot.offset, slot.size_bytes) == text) {
      slot.id = id;
      return;
    }
  }
}

int32_t StringIdMap::find(std::string_view text) const {
  if (slots_.empty()) return kNoToken;
  const auto hash = static_cast<uint32_t>(hash_bytes(text));
  for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[i];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.hash == hash && slot.size_bytes == text.size() &&
        std::memcmp(arena_.data() + slot.offset, text.data(), text.size()) == 0) {
      return slot.id;
    }
  }
}

Status Vocabulary::add(std::string_view text, int64_t id) {
  if (id < 0 || id > kMaxTokenId) {
    return data_loss("vocabulary: token '{}' has id {}; ids go from 0 to {}", text, id, kMaxTokenId);
  }
  const auto index = static_cast<size_t>(id);
  if (index >= texts_.size()) texts_.resize(index + 1);
  ids_.assign(text, static_cast<int32_t>(id));
  if (!texts_[index].is_set) {
    texts_[index] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size()), true};
    arena_ += text;
  }
  return ok_status();
}

std::string_view Vocabulary::text(int32_t id) const {
  if (!contains(id)) return {};
  const Text& entry = texts_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(entry.offset, entry.size_bytes);
}

void MergeTable::reserve(size_t num_merges) {
  CHECK(slots_.empty(), "MergeTable is sized once");
  const size_t capacity = std::bit_ceil(num_merges * 2 + 2);
  slots_.assign(capacity, Slot{});
  shift_ = 64 - std::countr_zero(capacity);
}

void MergeTable::assign(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = make_key(left, right);
  for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].key == key || slots_[i].key == kEmptyKey) {
      slots_[i] = {key, merge};
      return;
    }
  }
}

}  // namespace spate
