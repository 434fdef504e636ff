/*
 * The ring and its bells, as ring.c, bell.c and chan.c have them, on memory as x86 gives it: each
 * process has a store buffer (of one entry) that memory empties when it likes, so that a load may
 * pass the process's own earlier store. One writer, R readers, N records, CAP records in the ring.
 * A place of the ring holds a mark and a payload; a record is there when its mark is its number. The
 * place behind the newest record is always free, and its mark cleared before that record's is set.
 *
 * Checked: every reader gets every record, in order and whole, and never sees another's mark where it
 * waits (assert), though payloads look like marks; and nobody sleeps for ever (no invalid end state:
 * the model has no timeouts, so that a lost wake-up is a deadlock). A reader rings for room after
 * each record or only once it has found no more, as it likes.
 *
 * -DNO_SLEEPER_FENCE, -DNO_WAKER_FENCE leave one fence out, -DNO_CLEAR the clearing, -DNO_DEBT the
 * bell owed. All must then fail; check.sh sees to it.
 */
#ifndef R
#define R 2
#endif
#ifndef N
#define N 3
#endif
#ifndef CAP
#define CAP 1
#endif

/* memory: each variable has one writer */
#define WORD       0             /* writer: futex word */
#define LOOP_ARMED 1             /* writer: sleeps for room, on the eventfd */
#define TAIL(r)    (2 + (r))     /* reader r: records released */
#define ARMED(r)   (2 + R + (r)) /* reader r: sleeps for records, on the futex */
#define PLACES     (CAP + 1)
/* A short record's payload lies in the place of a later one's mark, and looks like it. */
#define MARK(n)    (2 + 2 * R + (n) % PLACES)
#define DATA(n)    (2 + 2 * R + PLACES + (n) % PLACES)
byte mem[2 + 2 * R + 2 * PLACES];

/* store buffers: of the writer (0) and of the readers (1 + r) */
bool held[1 + R];
byte variable[1 + R];
byte value[1 + R];

/* the kernel */
bool asleep[R];
byte eventfd;

inline store(p, v, x)
{
	atomic {
		!held[p];
		held[p] = true;
		variable[p] = v;
		value[p] = x;
	}
}

inline load(p, v, to)
{
	d_step {
		if
		:: held[p] && variable[p] == v -> to = value[p]
		:: else -> to = mem[v]
		fi
	}
}

inline drain(p)
{
	!held[p]
}

inline sleeper_fence(p)
{
#ifdef NO_SLEEPER_FENCE
	skip
#else
	drain(p)
#endif
}

inline waker_fence(p)
{
#ifdef NO_WAKER_FENCE
	skip
#else
	drain(p)
#endif
}

/* Memory takes an entry out of any buffer at any time. */
active proctype memory()
{
	byte p;
end:
	do
	:: atomic {
		held[0] -> mem[variable[0]] = value[0];
		held[0] = false
	}
	:: atomic {
		held[1] -> mem[variable[1]] = value[1];
		held[1] = false
	}
#if R > 1
	:: atomic {
		held[2] -> mem[variable[2]] = value[2];
		held[2] = false
	}
#endif
	od
}

/* no_room = some reader has not released what the next record would overwrite */
inline look_for_room()
{
	no_room = false;
	i = 0;
	do
	:: i == R -> break
	:: else ->
		load(0, TAIL(i), x);
		if
		:: next - x > CAP -> no_room = true
		:: else
		fi;
		i++
	od;
	x = 0
}

active proctype writer()
{
	byte next = 1, i, x;
	bool no_room, ring;

	do
	:: next > N -> break
	:: else ->
		look_for_room();
		do
		:: !no_room -> break
		:: else ->
			store(0, LOOP_ARMED, 1); /* chan_sleep() */
			sleeper_fence(0);
			look_for_room();
			if
			:: no_room ->
				drain(0); /* a system call */
				atomic { eventfd > 0; eventfd = 0 }
			:: else
			fi;
			store(0, LOOP_ARMED, 0); /* chan_wake() */
			look_for_room()
		od;

		/* ring_reserve(): the room reaches into the next place, and what is written there
		 * is what the next mark will be */
		store(0, MARK(next), next + 1);
		store(0, DATA(next - 1), next);
#ifndef NO_CLEAR
		store(0, MARK(next), 0); /* ring_commit() */
#endif
		store(0, MARK(next - 1), next);
		waker_fence(0); /* bell_ring_word() */
		ring = false;
		i = 0;
		do
		:: i == R -> break
		:: else ->
			load(0, ARMED(i), x);
			ring = ring || x;
			i++
		od;
		if
		:: ring ->
			load(0, WORD, x);
			store(0, WORD, x + 1);
			drain(0);
			d_step {
				asleep[0] = false;
#if R > 1
				asleep[1] = false
#endif
			}
		:: else
		fi;
		next++;
		i = 0;
		x = 0;
		ring = false
	od
}

/* bell_ring_fd(), bell_ring_word() */
inline ring_for_room(r)
{
	waker_fence(1 + r);
	load(1 + r, LOOP_ARMED, x);
	if
	:: x -> drain(1 + r); eventfd = 1
	:: else
	fi;
	owes = false
}

proctype reader(byte r)
{
	byte seen, mark, word, x;
	bool owes;

	do
	:: seen == N && !owes -> break
	:: else ->
		mark = 0;
		if
		:: seen < N -> load(1 + r, MARK(seen), mark)
		:: else
		fi;
		assert(mark == 0 || mark == seen + 1);
		if
		:: mark ->
			load(1 + r, DATA(seen), x); /* ring_peek() */
			assert(x == seen + 1);
			seen++;
			store(1 + r, TAIL(r), seen); /* ring_release() */
			owes = true;
			if
			:: ring_for_room(r)
			:: skip
			fi
		:: !mark && owes ->
#ifdef NO_DEBT
			owes = false
#else
			ring_for_room(r) /* chan_reply_pop() has found no more */
#endif
		:: else ->
			store(1 + r, ARMED(r), 1); /* bell_wait() */
			sleeper_fence(1 + r);
			load(1 + r, WORD, word);
			load(1 + r, MARK(seen), mark);
			if
			:: mark
			:: else ->
				drain(1 + r); /* a system call: FUTEX_WAIT */
				atomic {
					if
					:: mem[WORD] == word -> asleep[r] = true
					:: else
					fi
				};
				!asleep[r]
			fi;
			store(1 + r, ARMED(r), 0)
		fi;
		x = 0;
		mark = 0;
		word = 0
	od
}

init
{
	byte r;

	atomic {
		do
		:: r == R -> break
		:: else -> run reader(r); r++
		od
	}
}
