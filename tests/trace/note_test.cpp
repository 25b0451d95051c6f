#include "trace/note.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tern {
namespace {

Note note_at(std::uint64_t step) {
  Note note;
  note.step = step;
  return note;
}

TEST(NotePool, UsesAPlaceAgainOnlyWhenItsLastReferenceIsGone) {
  NotePool pool;
  NoteRef first = pool.make(note_at(1));
  const Note* place = first.get();
  NoteRef copy = first;
  first = {};
  EXPECT_NE(pool.make(note_at(2)).get(), place);
  EXPECT_EQ(copy->step, 1u);
  copy = {};
  const NoteRef third = pool.make(note_at(3));
  EXPECT_EQ(third.get(), place);
  EXPECT_EQ(third->step, 3u);
}

TEST(NotePool, KeepsPlacesWhereTheyAre) {
  NotePool pool;
  std::vector<NoteRef> notes;
  for (std::uint64_t step = 0; step < 1000; ++step) notes.push_back(pool.make(note_at(step)));
  for (std::uint64_t step = 0; step < 1000; ++step) EXPECT_EQ(notes[step]->step, step);
}

TEST(NoteRef, SurvivesAssignmentToItselfAndMoves) {
  NotePool pool;
  NoteRef note = pool.make(note_at(1));
  const NoteRef& same = note;
  note = same;
  EXPECT_EQ(note->step, 1u);
  const NoteRef moved = std::move(note);
  EXPECT_EQ(moved->step, 1u);
}

TEST(LaterOf, PrefersTheLaterNoteAndAnyToNone) {
  NotePool pool;
  const NoteRef none;
  const NoteRef one = pool.make(note_at(1));
  const NoteRef two = pool.make(note_at(2));
  EXPECT_EQ(later_of(one, two).get(), two.get());
  EXPECT_EQ(later_of(two, one).get(), two.get());
  EXPECT_EQ(later_of(none, one).get(), one.get());
  EXPECT_EQ(later_of(one, none).get(), one.get());
  EXPECT_FALSE(later_of(none, none));
}

}  // namespace
}  // namespace tern
