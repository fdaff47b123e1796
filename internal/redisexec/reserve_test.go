package redisexec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWordsOfAReservation(t *testing.T) {
	e := executor(nil, false) // two words for a run
	for _, row := range []struct {
		reply []int64
		want  int
	}{
		{reply: nil, want: 4},
		{reply: []int64{9, 1, 7}, want: 4},
		{reply: []int64{9, 0, 7, 0}, want: 4},
		{reply: []int64{9, 0, 7, 0, 5, 5}, want: 4},
		{reply: []int64{9, 1, 7, 4, 1, 2, 3, 4}, want: 8},
		{reply: []int64{9, 1, 7, 12, 1, 2, 3, 4}, want: 16},
		{reply: []int64{9, 1, 7, 5, 1, 2, 3, 4}, want: 9}, // which is too many
		{reply: []int64{9, 1, 7, -4, 1, 2, 3, 4}, want: 9},
	} {
		require.Equal(t, row.want, e.WordsOf(Reserve, row.reply), "%v", row.reply)
	}
}

func TestReservedOfItsWords(t *testing.T) {
	e := executor(nil, false)
	require.Equal(t, Reserved{Due: 9, Words: []int64{0, 7}}, e.ReservedOf([]int64{9, 0, 7, 0}))
	require.Equal(t, Reserved{Due: 9, Words: []int64{1, 7}, Receipt: Receipt{1, 2, 3, 4}}, e.ReservedOf([]int64{9, 1, 7, 4, 1, 2, 3, 4}))
}

// TestTextsOfAReceipt: the states as the scripts write them.
func TestTextsOfAReceipt(t *testing.T) {
	for _, row := range []struct {
		receipt     Receipt
		rule        string
		now, before string
	}{
		{Receipt{1763670000000000, 5, -1, 0}, "/3/1", "1763670000000000/5/3/1", ""},
		{Receipt{7, 5, -1, 0}, "/3/1", "0000000000000007/5/3/1", ""},
		{Receipt{7, 5, -1, 9}, "/3/1", "0000000000000007/5/3/1!9", ""},
		{Receipt{7, 5, 0, 9}, "/3/1/8", "0000000000000007/5+0/3/1/8!9", ""},
		{Receipt{7, 5, -1, 9, 6, 4, -1, 3, 1, 0, -2, 0}, "/3/1", "0000000000000007/5/3/1!9", "0000000000000006/4/3/1"},
		{Receipt{7, 5, -1, 9, 6, 4, 2, 3, 1, 8, -2, 11}, "/3/1", "0000000000000007/5/3/1!9", "0000000000000006/4+2/3/1/8!11"},
		{Receipt{7, 5, -1, 9, 6, 4, -1, 3, 1, 0, -1, 0}, "/3/1", "0000000000000007/5/3/1@!9", "0000000000000006/4/3/1@"},
		{Receipt{7, 5, -1, 0, 6, 4, -1, 3, 1, 0, 50, 2}, "/3/1", "0000000000000007/5/3/1@50", "0000000000000006/4/3/1@50!2"},
		{Receipt{7, 5, -1, 0, 6, 4, -1, 3, 1, 0, 0, 2}, "/3/1@70", "0000000000000007/5/3/1@70", "0000000000000006/4/3/1@0!2"},
		{Receipt{7, 5, -1, 0, 6, 4, -1, 3, 1, 0, -2, 2}, "/3/1@", "0000000000000007/5/3/1@", "0000000000000006/4/3/1!2"},
	} {
		now, before := row.receipt.Texts(row.rule)
		require.Equal(t, row.now, now, "%v", row.receipt)
		require.Equal(t, row.before, before, "%v", row.receipt)
	}
}
