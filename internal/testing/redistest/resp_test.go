package redistest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFramesAreFoundInAnyChunks(t *testing.T) {
	replies := []string{
		"+OK\r\n", ":12\r\n", "-ERR no\r\n", "$-1\r\n", "$0\r\n\r\n", "$5\r\na\r\nb*\r\n", "*-1\r\n", "*0\r\n", "_\r\n",
		"*2\r\n*1\r\n$1\r\nx\r\n:1\r\n", "%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n", ">2\r\n+message\r\n$2\r\nhi\r\n",
		"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n", "#t\r\n", ",1.5\r\n", "=7\r\ntxt:abc\r\n", "(123\r\n", "~2\r\n:1\r\n:2\r\n",
		"!3\r\nERR\r\n",
	}
	stream := strings.Join(replies, "")
	for size := 1; size <= len(stream); size++ {
		var f frames
		var got []string
		frame := ""
		for rest := stream; rest != ""; {
			chunk := rest[:min(size, len(rest))]
			rest = rest[len(chunk):]
			for chunk != "" {
				n, done := f.next([]byte(chunk))
				frame += chunk[:n]
				chunk = chunk[n:]
				if done {
					require.Equal(t, frame[0] == '>', f.push(), "push "+frame)
					got, frame = append(got, frame), ""
				}
			}
		}
		require.Equal(t, strings.Join(replies, "|"), strings.Join(got, "|"), "in chunks of %d", size)
	}
}

func TestOtherProtocolsAreOpaque(t *testing.T) {
	for _, stream := range []string{"\x16\x03\x01\n\n\n", "*x\r\n+OK\r\n", strings.Repeat("a", longestLine+1)} {
		var f frames
		n, done := f.next([]byte(stream))
		require.Equal(t, len(stream), n, "consumed")
		require.False(t, done)
		require.True(t, f.opaque)
	}
}
