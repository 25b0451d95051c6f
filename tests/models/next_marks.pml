/* Marks that are promised and taken later, and the pool that frees with them.
 *
 * Two host threads make up to K calls, in every possible way, and interleave between the steps of
 * each: what happens under one lock, or in one load, is one step. Streams work through their queues
 * in their own time. A use writes a fresh number to its block when the block is handed out and
 * reads it back, on the same stream, before the block is freed.
 *
 * Proved, for all interleavings:
 *   1. A read finds the number its own use wrote: no block is reused before it is ready.
 *   2. No mark is called done, and no block is free for all, before the work they stand for is.
 *   3. Nothing is recorded on a stream that has ended, or that nobody borrows.
 *   4. When nothing can run, all queues are empty and all calls have returned.
 *
 * Stream 1 belongs to other code and is borrowed. While nobody borrows it, it is idle: its marks may
 * have no event, and its owner may destroy it.
 *
 * MISTAKE plants one mistake, M1 to M14, or UNMET_WAIT, which shows that 4 is looked at; 0 is none.
 */

#ifndef K
#define K 5
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif

#define M1 (MISTAKE == 1)           /* steal does not wait */
#define M2 (MISTAKE == 2)           /* a mark the stream has not passed counts as done */
#define M3 (MISTAKE == 3)           /* issued is read after the event is recorded */
#define M4 (MISTAKE == 4)           /* a block leaves with the mark its call began with */
#define M5 (MISTAKE == 5)           /* joined ranges keep the older mark */
#define M6 (MISTAKE == 6)           /* a stream ends without the mark it has promised */
#define M7 (MISTAKE == 7)           /* a slot is used again before its marks are done */
#define M8 (MISTAKE == 8)           /* free reads issued before the last use is submitted */
#define M9 (MISTAKE == 9)           /* settle goes up to the newest mark */
#define M10 (MISTAKE == 10)         /* a block is handed out without a promise */
#define M11 (MISTAKE == 11)         /* synchronize takes a mark of a stream that has ended */
#define M12 (MISTAKE == 12)         /* an event is recorded on an idle stream */
#define M13 (MISTAKE == 13)         /* a mark of an idle stream without an event counts as done */
#define M14 (MISTAKE == 14)         /* an idle stream that was destroyed is taken for sealed */
#define UNMET_WAIT (MISTAKE == 15)  /* the thief waits for a record nobody has made */

/* Two slots. Streams 0 and 1 begin in them; 2 comes later, to a slot whose stream has ended. */
#define STREAMS 3
#define NEVER 3
byte home[STREAMS];  /* the slot of each stream; NEVER until it is made */

typedef Slot {
  byte tenant;      /* the stream that was made in it last */
  byte issued;      /* the last mark taken */
  byte done;        /* the last mark seen complete */
  bool has_next;    /* somebody holds the mark after the last one issued */
  bool is_ending;   /* takes no work any more */
  bool has_ended;   /* sealed */
  bool is_idle;     /* nobody borrows it */
  bool is_unsealed; /* ended without an event after its last mark */
  bool is_locked;
  byte cache_name;  /* the last stream that allocated or freed here */
  byte lane_name;   /* whose marks the ranges in flight have */
};
Slot slot[2];

/* WRITE and READ carry a block and a number, RECORD and WAIT a stream and one of its records. No
 * call queues more than three, so a full queue never holds up a host. */
mtype = { WRITE, READ, RECORD, WAIT };
chan queue[STREAMS] = [3 * K] of { mtype, byte, byte };

/* Events in the order they were recorded, each with the last mark it covers. */
typedef Records {
  byte count;
  byte passed;
  byte sequence[K + 2];
};
Records records[STREAMS];

/* Two blocks, which may touch or not. HELD is on the way from one place to another. LATE is freed
 * when its stream has ended. */
mtype = { FREE_FOR_ALL, LIVE, LATE, HELD, CACHE, LANE };
typedef Block {
  mtype place;
  byte at;        /* the slot whose cache or lane it is in */
  byte user;      /* the stream whose use is live */
  byte number;    /* of the last use */
  bool is_over;   /* the stream has passed that use */
  bool is_carried;  /* was live when a loan ended: the owner frees it in a later loan */
  byte sequence;  /* the mark of the free, or a later one in the lane */
};
Block block[2];
byte memory[2];

byte calls;
byte uses[2];     /* 1 + the stream a host calls on, or 0: a stream does not end while it is used */
bool is_busy[2];

#define is_alive(i)  (slot[home[i]].tenant == i && !slot[home[i]].is_ending && \
                      !slot[home[i]].is_idle)
#define is_used(i)   (uses[0] == i + 1 || uses[1] == i + 1)
#define is_in(b, where, s)  (block[b].place == where && block[b].at == s)
#define is_pending(s, name, mark)  (slot[s].tenant == name && slot[s].done < mark)
#define is_oldest(b)  (!is_in(1 - b, LANE, block[b].at) || \
                       2 * block[b].sequence + b < 2 * block[1 - b].sequence + 1 - b)
#define has_passed(i)  (records[i].passed == records[i].count)
#define is_live(b, i)  (block[b].place == LIVE && block[b].user == i)
#define is_kept(b, s)  (is_in(b, CACHE, s) || is_in(b, LANE, s))

inline check_done(there, piece) {
  assert(!is_kept(piece, there) || block[piece].sequence > slot[there].done || block[piece].is_over)
}

inline see_done(here, seen) {
  if
  :: slot[here].done < seen ->
     slot[here].done = seen;
     check_done(here, 0);
     check_done(here, 1)
  :: else
  fi
}

inline give_to_all(what) {
  assert(block[what].is_over);
  block[what].place = FREE_FOR_ALL;
  block[what].at = 0;
  block[what].sequence = 0;
  block[what].user = 0
}

/* One step with the write: a stream that is given the write later only starts on it later. */
inline hand_out(what, whom) {
  if
  :: M10
  :: else -> slot[home[whom]].has_next = true
  fi;
  slot[home[whom]].cache_name = whom;
  block[what].place = LIVE;
  block[what].at = 0;
  block[what].sequence = 0;
  block[what].user = whom;
  block[what].number++;
  block[what].is_over = false;
  block[what].is_carried = false;
  queue[whom] ! WRITE(what, block[what].number)
}

inline last_use(what) { queue[block[what].user] ! READ(what, block[what].number) }

inline record(whose, covered) {
  records[whose].count++;
  records[whose].sequence[records[whose].count] = covered;
  queue[whose] ! RECORD(whose, records[whose].count)
}

/* The oldest record that covers the mark, or 0. */
inline find_record(whose, wanted, found) {
  found = 1;
  do
  :: found > records[whose].count -> found = 0; break
  :: found <= records[whose].count && records[whose].sequence[found] >= wanted -> break
  :: else -> found++
  od
}

inline poll_records(where, whose) {
  if
  :: records[whose].passed != 0 -> see_done(where, records[whose].sequence[records[whose].passed])
  :: else
  fi
}

/* A lane is in the order of its marks. Blocks that touch become one range with the later mark. */
inline put_in_flight(what, where, own) {
  if
  :: is_in(1 - what, LANE, where) && block[1 - what].sequence > own ->
     block[what].sequence = block[1 - what].sequence
  :: else -> block[what].sequence = own
  fi;
  block[what].place = LANE;
  block[what].at = where;
  if
  :: is_in(1 - what, LANE, where) ->
     if
     :: M5 -> block[what].sequence = block[1 - what].sequence
     :: block[1 - what].sequence = block[what].sequence
     :: true
     fi
  :: else
  fi
}

inline settle(one, where, upto) {
  if
  :: is_in(one, LANE, where) && block[one].sequence <= upto -> give_to_all(one)
  :: else
  fi
}

/* Whoever holds a block of the stream frees it later; its last use is submitted before the end. */
inline begin_to_end(where, who) {
  slot[where].is_ending = true;
  slot[where].is_locked = true;
  if :: is_live(0, who) -> last_use(0); block[0].place = LATE :: else fi;
  if :: is_live(1, who) -> last_use(1); block[1].place = LATE :: else fi;
  if
  :: slot[where].has_next && !M6 -> slot[where].has_next = false; slot[where].issued++
  :: else
  fi
}

/* A block that the owner uses after the loan is freed in a later loan. Others may be freed late. */
inline may_leave(what, who) {
  if
  :: is_live(what, who) && !block[what].is_carried -> last_use(what); block[what].place = LATE
  :: is_live(what, who) -> block[what].is_carried = true
  :: else
  fi
}

/* The last loan ends, with an event after the work or without one. */
inline become_idle(where, who) {
  may_leave(0, who);
  may_leave(1, who);
  if
  :: slot[where].has_next = false; slot[where].issued++; record(who, slot[where].issued)
  :: true
  fi;
  slot[where].is_idle = true
}

/* The handle of an idle stream has a new id: the owner has destroyed the stream. */
inline retire_stream(where, who) {
  if
  :: slot[where].has_next -> slot[where].has_next = false; slot[where].issued++
  :: else
  fi;
  slot[where].is_unsealed =
      !M14 && slot[where].issued > slot[where].done &&
      slot[where].issued > records[who].sequence[records[who].count];
  slot[where].is_idle = false;
  slot[where].is_ending = true;
  slot[where].has_ended = true
}

/* Sequence numbers go on. */
inline make_stream(who, into) {
  if
  :: slot[into].has_ended && !slot[into].is_locked && (M7 ||
     (has_passed(slot[into].tenant) &&
      (!slot[into].is_unsealed || slot[into].done >= slot[into].issued))) ->
     poll_records(into, slot[into].tenant);
     slot[into].has_ended = false;
     slot[into].is_unsealed = false;
     slot[into].is_ending = false;
     slot[into].tenant = who;
     home[who] = into;
     calls++
  :: else
  fi
}

/* The host waits for a point in the queue, which is no event and covers nothing. */
inline begin_to_wait(where) {
  atomic {
    slot[where].issued = slot[where].issued + is_done;
    now = slot[where].issued;
    name = slot[where].tenant;
    record(name, records[name].sequence[records[name].count - 1]);
    r = records[name].count
  }
}

inline newest(where, last) {
  if :: is_in(0, LANE, where) && block[0].sequence > last -> last = block[0].sequence :: else fi;
  if :: is_in(1, LANE, where) && block[1].sequence > last -> last = block[1].sequence :: else fi
}

inline begin_call() { calls++; is_busy[me] = true }

inline return_from_call() {
  b = 0; i = 0; s = 0; name = 0; mark = 0; now = 0; r = 0; is_done = false; why = 0;
  uses[me] = 0;
  is_busy[me] = false;
  goto end_idle
}

/* Where the answer was known at once, nobody locked. */
inline unlock_unless_done() {
  if
  :: is_done
  :: else -> slot[s].is_locked = false
  fi
}

inline any_block(x) { if :: x = 0 :: x = 1 fi }
inline any_stream(x) { if :: x = 0 :: x = 1 :: x = 2 fi }

mtype = { STEAL, QUERY, SEAL, FREE_LATE, SYNCHRONIZE };

proctype host(byte me) {
  byte b, i, s, name, mark, now, r;
  bool is_done;
  mtype why;

end_idle:
  atomic {
    /* Idle hosts are alike, so the second begins a call only while the first is in one. */
    calls < K && (me == 0 || is_busy[0]);
    if
    :: calls = K; goto end_idle  /* a later call must not be what ends an earlier wait */
    :: any_block(b); any_stream(i)
    fi;
    if
    :: home[i] == NEVER ->
       make_stream(i, b);
       b = 0; i = 0;
       goto end_idle
    :: home[i] != NEVER -> s = home[i]
    fi;
    if
    /* Own work is in order, and what is free for all is done: no wait. Free blocks are alike. */
    :: is_alive(i) && (is_kept(b, s) || block[b].place == FREE_FOR_ALL) &&
       !(b == 1 && block[0].place == FREE_FOR_ALL && block[1].place == FREE_FOR_ALL &&
         block[0].number == block[1].number) ->
       begin_call();
       hand_out(b, i);
       return_from_call()
    :: is_alive(i) && is_in(b, LANE, 1 - s) ->
       begin_call();
       uses[me] = i + 1;
       s = 1 - s;
       block[b].place = HELD;
       name = slot[s].lane_name;
       mark = block[b].sequence;
       why = STEAL;
       goto ask
    :: is_alive(i) && is_live(b, i) ->
       begin_call();
       uses[me] = i + 1;
       block[b].place = HELD;
       if
       :: M8 -> slot[s].has_next = true; block[b].sequence = slot[s].issued + 1
       :: else -> last_use(b)
       fi;
       goto free
    :: i < 2 && is_in(b, CACHE, s) ->
       begin_call();
       goto flush
    :: M4 && i < 2 && b == 0 && is_alive(i) ->
       begin_call();
       now = slot[s].issued + 1;
       goto flush_late
    :: i < 2 && is_in(b, LANE, s) && is_oldest(b) ->
       begin_call();
       name = slot[s].lane_name;
       mark = block[b].sequence;
       why = QUERY;
       goto ask
    :: b == 0 && is_alive(i) ->  /* a mark for whoever wants one */
       calls++;
       slot[s].issued++;
       b = 0; i = 0; s = 0;
       goto end_idle
    :: b == 0 && slot[s].tenant == i && !slot[s].has_ended ->
       begin_call();
       goto seal
    :: b == 0 && slot[s].tenant == i ->
       begin_call();
       goto synchronize
    :: b == 0 && is_alive(i) && !is_used(i) && !slot[s].is_locked &&
       !(is_live(0, i) && block[0].is_carried) && !(is_live(1, i) && block[1].is_carried) ->
       begin_call();
       begin_to_end(s, i);
       goto end_stream
    :: b == 1 && i == 1 && is_alive(i) && !is_used(i) && !slot[s].is_locked ->
       calls++;
       become_idle(s, i);
       b = 0; i = 0; s = 0;
       goto end_idle
    :: b == 0 && i == 1 && slot[s].tenant == i && slot[s].is_idle ->
       calls++;
       slot[s].is_idle = false;
       b = 0; i = 0; s = 0;
       goto end_idle
    :: b == 1 && i == 1 && slot[s].tenant == i && slot[s].is_idle && !slot[s].is_locked &&
       !is_live(0, i) && !is_live(1, i) ->
       calls++;
       retire_stream(s, i);
       b = 0; i = 0; s = 0;
       goto end_idle
    :: block[b].place == LATE && block[b].user == i ->
       begin_call();
       block[b].place = HELD;
       name = i;
       why = FREE_LATE;
       if
       :: slot[s].tenant == i &&
          (slot[s].has_ended || (slot[s].is_idle && !slot[s].has_next)) -> mark = slot[s].issued
       :: slot[s].tenant == i &&
          !(slot[s].has_ended || (slot[s].is_idle && !slot[s].has_next)) ->
          slot[s].has_next = true;
          mark = slot[s].issued + 1
       :: slot[s].tenant != i
       fi;
       goto ask
    :: else -> b = 0; i = 0; s = 0; goto end_idle
    fi
  };

  /* --- Freeing */
free:
  atomic {
    if
    :: M8 -> last_use(b)
    :: else -> slot[s].has_next = true; block[b].sequence = slot[s].issued + 1
    fi;
    if
    :: M4 -> now = block[b].sequence
    :: else
    fi
  };
  atomic {
    block[b].place = CACHE;
    block[b].at = s;
    block[b].user = 0;
    slot[s].cache_name = i;
    name = i;
    if
    :: return_from_call()
    :: true
    :: is_in(1 - b, CACHE, s) -> b = 1 - b
    fi;
    block[b].place = HELD
  };
  goto retire;

flush_late:
  atomic {
    if
    :: is_in(0, CACHE, s) -> b = 0
    :: is_in(1, CACHE, s) -> b = 1
    :: return_from_call()
    fi;
    goto flush
  };
flush:
  atomic {
    if
    :: is_in(b, CACHE, s) -> block[b].place = HELD; name = slot[s].cache_name
    :: else -> return_from_call()
    fi
  };

  /* The mark of a block's own free: another thread may have freed it, later than this call began.
   * Of several streams that had the slot the last gives its name: marks of the others are done. */
retire:
  atomic {
    if
    :: M4 && now != 0 -> put_in_flight(b, s, now)
    :: else -> put_in_flight(b, s, block[b].sequence)
    fi;
    if
    :: slot[s].lane_name < name -> slot[s].lane_name = name
    :: else
    fi;
    return_from_call()
  };

  /* --- Asking about a mark. A stream may end between the two steps of a seal, which is made by
   * whoever empties its cache. */
seal:
  atomic {
    if
    :: slot[s].is_idle && !slot[s].has_next -> return_from_call()
    :: else
    fi;
    slot[s].has_next = true;
    name = i;
    mark = slot[s].issued + 1;
    why = SEAL
  };
ask:
  atomic {
    !slot[s].is_locked;
    /* A mark that was promised while the stream ended covers no work after the seal. */
    if
    :: slot[s].tenant == name && slot[s].has_ended && mark > slot[s].issued -> mark = slot[s].issued
    :: else
    fi;
    if
    :: !is_pending(s, name, mark) || (why == SEAL && slot[s].has_ended) ->
       is_done = true;
       goto answer
    :: else
    fi;
    if
    :: slot[s].is_unsealed && (why == QUERY || why == SEAL) -> return_from_call()
    :: slot[s].is_unsealed && why != QUERY && why != SEAL -> goto context
    :: else
    fi;
    slot[s].is_locked = true;
    if
    :: slot[s].has_next && slot[s].issued + 1 == mark -> slot[s].issued = mark
    :: else
    fi;
    find_record(name, mark, r);
    if
    :: r != 0 -> goto answer
    :: r == 0 && slot[s].is_idle && !M12 ->
       slot[s].is_locked = false;
       if
       :: M13 -> is_done = true; goto answer
       :: !M13 && (why == QUERY || why == SEAL) -> return_from_call()
       :: else -> goto context
       fi
    :: else -> assert(!slot[s].has_ended)
    fi;
    now = slot[s].issued
  };
  /* Between reading issued and this, others submit work, free and take marks. */
  atomic {
    assert(!slot[s].is_idle);
    record(name, now);
    r = records[name].count;
    if
    :: M3
    :: else -> goto answer
    fi
  };
  atomic {
    if
    :: M3 -> records[name].sequence[r] = slot[s].issued
    :: else
    fi
  };
answer:
  atomic {
    if
    :: why == STEAL ->
       if
       :: is_done || M1
       :: UNMET_WAIT && !is_done -> queue[i] ! WAIT(name, r + 1)
       :: else -> queue[i] ! WAIT(name, r)
       fi;
       unlock_unless_done();
       hand_out(b, i);
       return_from_call()
    :: why == SEAL ->
       unlock_unless_done();
       return_from_call()
    :: why == QUERY ->
       if
       :: is_done
       :: else ->
          poll_records(s, name);
          is_done = M2 || slot[s].done >= mark;
          slot[s].is_locked = false
       fi;
       if
       :: is_done
       :: else -> return_from_call()
       fi
    :: why == FREE_LATE -> unlock_unless_done()
    fi
  };
  if
  :: atomic {
       why == QUERY ->
       if
       :: M9 -> newest(s, mark)
       :: else
       fi;
       settle(0, s, mark);
       settle(1, s, mark);
       return_from_call()
     }
  :: atomic {
       why == FREE_LATE && (is_done || records[name].passed >= r) ->
       if
       :: is_done
       :: else -> see_done(s, mark)
       fi;
       give_to_all(b);
       return_from_call()
     }
  fi;

  /* --- A wait for the context. It covers what was submitted before it, also to a stream that the
   * owner has destroyed. What an idle stream has promised is issued first. */
context:
  atomic {
    if
    :: slot[s].tenant == name && slot[s].is_idle ->
       slot[s].has_next = false;
       slot[s].issued++;
       now = slot[s].issued
    :: slot[s].tenant == name && slot[s].is_unsealed -> now = slot[s].issued
    :: else -> now = 0
    fi;
    record(name, records[name].sequence[records[name].count - 1]);
    r = records[name].count
  };
  atomic {
    records[name].passed >= r ->
    see_done(s, now);
    if
    :: why == STEAL -> hand_out(b, i)
    :: why == FREE_LATE -> give_to_all(b)
    :: why == SYNCHRONIZE
    fi;
    return_from_call()
  };

  /* --- Streams */
synchronize:
  atomic {
    if
    :: slot[s].is_idle || slot[s].is_unsealed ->
       name = i;
       why = SYNCHRONIZE;
       goto context
    :: else
    fi;
    /* Not behind the seal: the last mark of an ended stream must stay the one its record covers. */
    M11 || !slot[s].is_locked;
    is_done = slot[s].has_next && (M11 || !slot[s].has_ended);
    if
    :: M11
    :: else ->
       begin_to_wait(s);
       goto wait
    fi
  };
  begin_to_wait(s);
wait:
  atomic {
    records[name].passed >= r ->
    see_done(s, now);
    return_from_call()
  };

end_stream:
  atomic {
    if
    :: slot[s].issued > slot[s].done && slot[s].issued > records[i].sequence[records[i].count] ->
       record(i, slot[s].issued)
    :: else
    fi;
    slot[s].has_ended = true;
    slot[s].is_locked = false;
    return_from_call()
  }
}

/* A stream may rest at idle only, where any entry in its queue can be taken out. A WAIT is taken
 * out before it is met, so a stream held by one is not idle, and resting there is an error. */
proctype stream(byte me) {
  byte what, number;
end_idle:
  do
  :: d_step {
       queue[me] ? WRITE(what, number) ->
       memory[what] = number;
       what = 0; number = 0
     }
  :: d_step {
       queue[me] ? READ(what, number) ->
       assert(memory[what] == number);
       if
       :: block[what].number == number -> block[what].is_over = true
       :: else
       fi;
       what = 0; number = 0
     }
  :: d_step {
       queue[me] ? RECORD(what, number) ->
       records[what].passed = number;
       what = 0; number = 0
     }
  :: atomic {
       queue[me] ? WAIT(what, number) ->
       records[what].passed >= number;
       what = 0; number = 0
     }
  od
}

init {
  atomic {
    home[1] = 1;
    home[2] = NEVER;
    slot[1].tenant = 1;
    slot[1].cache_name = 1;
    slot[1].lane_name = 1;
    block[0].place = FREE_FOR_ALL;
    block[0].is_over = true;
    block[1].place = FREE_FOR_ALL;
    block[1].is_over = true;
    run host(0); run host(1);
    run stream(0); run stream(1); run stream(2)
  }
}
