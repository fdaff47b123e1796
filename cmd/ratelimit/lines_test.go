package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// readLines returns the lines of r, with "too long" in place of those that are.
func readLines(t *testing.T, r io.Reader) (lines []string) {
	t.Helper()
	l, err := newLineReader(r)
	require.NoError(t, err)
	for {
		line, tooLong, err := l.next()
		if err == io.EOF {
			require.Equal(t, len(lines), l.number)
			return lines
		}
		require.NoError(t, err)
		if tooLong {
			line = []byte("too long")
		}
		lines = append(lines, string(line))
	}
}

func TestLines(t *testing.T) {
	raceflag.SkipSequential(t)
	full := strings.Repeat("x", maxLine)
	for _, tt := range []struct {
		name, text string
		lines      []string
	}{
		{"nothing", "", nil},
		{"one without an ending", "a", []string{"a"}},
		{"endings of both kinds", "a\r\nb\n\r\n\nc\r", []string{"a", "b", "", "", "c"}},
		{"marked as UTF-8", "\xef\xbb\xbfa\n\xef\xbb\xbfb\n", []string{"a", "\xef\xbb\xbfb"}},
		{"as long as can be", full + "\n" + full + "\r\n" + full, []string{full, full, full}},
		{"too long", full + "x\na\n" + full + full + full + "\r\nb\n" + full + "xxx", []string{"too long", "a", "too long", "b", "too long"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.lines, readLines(t, strings.NewReader(tt.text)))
			require.Equal(t, tt.lines, readLines(t, iotest.HalfReader(strings.NewReader(tt.text))))
			require.Equal(t, tt.lines, readLines(t, bytes.NewReader(gzipped(t, tt.text))))
		})
	}
}

func TestLinesPassErrorsOn(t *testing.T) {
	broken := errors.New("broken")
	l, err := newLineReader(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(broken)))
	require.NoError(t, err)
	line, _, err := l.next()
	require.Equal(t, "a", string(line))
	require.NoError(t, err)
	_, _, err = l.next()
	require.ErrorIs(t, err, broken)
}

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, text)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}
