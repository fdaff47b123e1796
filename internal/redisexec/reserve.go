package redisexec

import (
	"fmt"
	"strconv"
)

// A Reserved is the reply to a reservation, see operations.lua.
type Reserved struct {
	Due     int64   // microseconds from now until the permits are due, or would have been
	Words   []int64 // of a run of one request
	Receipt Receipt // nil: nothing was taken
}

// A Receipt is the numbers that say what a key holds since a reservation, and what it held before:
// those of the block receipt.
type Receipt []int64

const (
	wrote    = 4         // numbers of what the key holds
	wroteAll = wrote + 8 // and of what it held
)

// wordsOfReservation is the number of words of a reservation: when it is due, those of the run,
// and a number of further ones.
func (e *Executor) wordsOfReservation(reply []int64) int {
	further := 1 + e.Words
	if len(reply) <= further {
		return further + 1
	}
	switch reply[further] {
	case 0, wrote, wroteAll:
		return further + 1 + int(reply[further])
	}
	return len(reply) + 1 // no script replies so
}

// ReservedOf reads the words of a reservation.
func (e *Executor) ReservedOf(words []int64) Reserved {
	further := 1 + e.Words
	r := Reserved{Due: words[0], Words: words[1:further]}
	if words[further] > 0 {
		r.Receipt = words[further+1:]
	}
	return r
}

// Texts are the states that r is about: what the key holds if nothing has changed, and what it held
// before. rule is that of the bucket, as it stands in a state.
func (r Receipt) Texts(rule string) (now, before string) {
	if len(r) == wroteAll {
		old := r[wrote:]
		written := fmt.Sprintf("/%d/%d", old[3], old[4])
		if old[5] > 0 {
			written += fmt.Sprintf("/%d", old[5])
		}
		mark := markOf(old[6])
		before = level(old[0], old[1], old[2]) + written + mark + promise(old[7])
		if !marked(rule) { // the server's clock keeps the mark of a caller's
			rule += mark
		}
	}
	return level(r[0], r[1], r[2]) + rule + promise(r[3]), before
}

func level(at, permits, units int64) string {
	text := fmt.Sprintf("%016d/%d", at, permits)
	if units >= 0 {
		text += "+" + strconv.FormatInt(units, 10)
	}
	return text
}

func markOf(kind int64) string {
	switch kind {
	case -2:
		return ""
	case -1:
		return "@"
	}
	return "@" + strconv.FormatInt(kind, 10)
}

func marked(rule string) bool {
	for _, c := range []byte(rule) {
		if c == '@' {
			return true
		}
	}
	return false
}

func promise(micros int64) string {
	if micros == 0 {
		return ""
	}
	return "!" + strconv.FormatInt(micros, 10)
}
