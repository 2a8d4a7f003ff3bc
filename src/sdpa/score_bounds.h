// Finds out whether a register of a score program (polyhead/score_program.h) holds the same for all pairs of a tile, without computing the pairs: it computes the
// smallest and the largest value that the conditions of the program's selections may have in the tile.
#pragma once

#include <vector>

#include "polyhead/score_program.h"

namespace polyhead {

class ScoreBounds {
 public:
  // `number`: the register of interest, such as the result.
  ScoreBounds(const ScoreProgramCode& code, std::int32_t number);

  // Returns whether chosen() may return a register for which f(its instruction) is true. A condition that depends on scores never decides.
  template <class F>
  bool may_choose(const F& f) const {
    for (const std::int32_t choice : choices_) {
      if (decides_ && f(instruction(choice))) return true;
    }
    return false;
  }
  bool by_batch() const { return by_batch_; }  // false: chosen() does not depend on ScoreTile::batch
  bool by_head() const { return by_head_; }

  // Returns the instruction whose number all pairs of the tile have, because each selection on the way to it has the same condition for all pairs; else nullptr.
  // Does not read tile.scores.
  const ScoreInstruction* chosen(const ScoreTile& tile) const;

 private:
  template <class T>
  std::int32_t choose(const ScoreTile& tile) const;
  const ScoreInstruction& instruction(std::int32_t number) const { return instructions_[static_cast<std::size_t>(number)]; }

  std::vector<ScoreInstruction> instructions_;
  std::vector<ConstTensorView> tables_;
  std::int32_t number_;
  std::vector<std::int32_t> selections_;  // the selections that may give the number, in order
  std::vector<std::int32_t> conditions_;  // the instructions that compute their conditions, in order
  std::vector<std::int32_t> choices_;     // the registers from which they choose
  bool decides_ = false, by_batch_ = false, by_head_ = false;
};

}  // namespace polyhead
