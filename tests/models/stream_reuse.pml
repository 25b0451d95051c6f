/* Reuse of pool memory across streams.
 *
 * A host issues up to K pool operations, in every possible way and at any moment, to three streams
 * that work through their queues in their own time. A use writes a fresh number to its block when
 * the block is handed out and reads it back, on the same stream, when the block is freed.
 *
 * Proved, for all interleavings:
 *   1. A read finds the number its own use wrote: no block is reused before it is ready.
 *   2. When nothing can run, all queues are empty: no wait is left for ever.
 *
 * MISTAKE plants one mistake, M1 to M6, or UNMET_WAIT, which shows that 2 is looked at; 0 is none.
 */

#ifndef K
#define K 7
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif

#define M1 (MISTAKE == 1)          /* merge does not record */
#define M2 (MISTAKE == 2)          /* steal does not wait */
#define M3 (MISTAKE == 3)          /* a remainder goes to the thief, whose event is older */
#define M4 (MISTAKE == 4)          /* free records only an event that was never recorded */
#define M5 (MISTAKE == 5)          /* the thief waits for its own event */
#define M6 (MISTAKE == 6)          /* merge does not wait */
#define UNMET_WAIT (MISTAKE == 7)  /* the thief waits for a record nobody has made */

#define STREAMS 3

/* Memory is two halves. A block is a set of them, and so is a free list: splitting, coalescing and
 * moving a whole list are operations on bits. */
#define LOWER 1
#define UPPER 2
#define WHOLE 3
byte memory[2];

/* WRITE and READ carry a block and a number, RECORD and WAIT the stream of an event and the number
 * of a record. No operation queues more than two, so a full queue never holds up the host. */
mtype = { WRITE, READ, RECORD, WAIT };
chan queue[STREAMS] = [2 * K] of { mtype, byte, byte };

/* One event per stream: the last record the host has queued, and the last the stream has passed. */
byte recorded[STREAMS];
byte passed[STREAMS];

/* The pool. Live blocks are disjoint, so the block itself is the index of its use. */
byte list[STREAMS];
byte use[WHOLE + 1];   /* the number the use wrote; 0 where none is live */
byte user[WHOLE + 1];  /* the stream it is on */
byte issued;

/* Lists are in address order: the upper half goes only where the lower is not to be had. */
#define fits(block, s)     ((list[s] & block) == block && (block != UPPER || list[s] == UPPER))
#define is_live(block, s)  (use[block] != 0 && user[block] == s)

inline record(at) {
  recorded[at]++;
  queue[at] ! RECORD(at, recorded[at])
}

/* Waits for the latest record at the call, whatever is recorded later. Where there is none, the
 * wait is legal and orders nothing. */
inline wait(at, whose) {
  if
  :: recorded[whose] != 0 -> queue[at] ! WAIT(whose, recorded[whose])
  :: else
  fi
}

inline hand_out(piece, from, to) {
  list[from] = list[from] & ~piece;
  use[piece] = issued + 1;  /* fresh: one operation, one number */
  user[piece] = to;
  queue[to] ! WRITE(piece, use[piece])
}

inline free_block(block, s) {
  queue[s] ! READ(block, use[block]);
  if
  :: M4 && recorded[s] != 0
  :: else -> record(s)
  fi;
  list[s] = list[s] | block;
  use[block] = 0;
  user[block] = 0
}

/* Needs no wait: a list holds what its stream has freed, or has merged and waited for. */
inline take_own(block, s) {
  hand_out(block, s, s)
}

/* The remainder stays with the owner: it is ready at the owner's event, not at the thief's. */
inline steal(block, owner, s) {
  if
  :: M2
  :: M5 -> wait(s, s)
  :: UNMET_WAIT -> queue[s] ! WAIT(owner, recorded[owner] + 1)
  :: else -> wait(s, owner)
  fi;
  hand_out(block, owner, s);
  if
  :: M3 -> list[s] = list[s] | list[owner]; list[owner] = 0
  :: else
  fi
}

/* Records after the wait, so that a third stream that steals from s is ordered after the owner. */
inline merge(owner, s) {
  if
  :: M6
  :: else -> wait(s, owner)
  fi;
  list[s] = list[s] | list[owner];
  list[owner] = 0;
  if
  :: M1
  :: else -> record(s)
  fi
}

inline any_stream(s) { if :: s = 0 :: s = 1 :: s = 2 fi }
inline any_block(block) { if :: block = LOWER :: block = UPPER :: block = WHOLE fi }

/* An operation is one step, since a stream that starts on half of it only starts sooner. The host
 * may stop after any of them: a later record must not be what ends an earlier wait. */
proctype host() {
  byte part, there, here;
  do
  :: atomic {
       issued < K ->
       any_block(part); any_stream(there); any_stream(here);
       if
       :: is_live(part, here) -> free_block(part, here); issued++
       :: fits(part, here) -> take_own(part, here); issued++
       :: there != here && fits(part, there) -> steal(part, there, here); issued++
       :: there != here && list[there] != 0 -> merge(there, here); issued++
       :: else  /* nothing of the kind can be done now, and it does not count */
       fi;
       part = 0; there = 0; here = 0
     }
  :: break
  od
}

/* A stream may rest at idle only, where any entry in its queue can be taken out. A WAIT is taken
 * out before it is met, so a stream held by one is not idle, and resting there is an error. */
proctype stream(byte me) {
  byte what, number;
end_idle:
  do
  :: d_step {
       queue[me] ? WRITE(what, number) ->
       if :: what & LOWER -> memory[0] = number :: else fi;
       if :: what & UPPER -> memory[1] = number :: else fi;
       what = 0; number = 0
     }
  :: d_step {
       queue[me] ? READ(what, number) ->
       assert(!(what & LOWER) || memory[0] == number);
       assert(!(what & UPPER) || memory[1] == number);
       what = 0; number = 0
     }
  :: d_step {
       queue[me] ? RECORD(what, number) ->
       passed[what] = number;
       what = 0; number = 0
     }
  :: atomic {
       queue[me] ? WAIT(what, number) ->
       passed[what] >= number;
       what = 0; number = 0
     }
  od
}

/* All memory starts in the list of one stream, which has never recorded. Spin removes processes
 * youngest first; the host is the oldest, so that its end does not double the states. */
init {
  atomic {
    list[0] = WHOLE;
    run host();
    run stream(0); run stream(1); run stream(2)
  }
}
