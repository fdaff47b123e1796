package ratelimittest

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// ends are those of a connection, in a bubble: a goroutine that is left behind fails the test.
func ends(t *testing.T, test func(t *testing.T, a, b net.Conn)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		test(t, newBuffered(a), newBuffered(b))
	})
}

func TestWhatWasWrittenBeforeCloseIsRead(t *testing.T) {
	ends(t, func(t *testing.T, a, b net.Conn) {
		_, err := a.Write([]byte("hello"))
		require.NoError(t, err)
		read := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		require.NoError(t, a.Close())
		synctest.Wait()
		require.Len(t, read, 1, "a reader of the end that is closed does not wait for the other end")
		require.ErrorIs(t, <-read, net.ErrClosed)
		_, err = a.Write([]byte("more"))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, a.Close(), net.ErrClosed)

		text, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "hello", string(text))
		require.NoError(t, b.Close())
	})
}

// Both ends are closed, and neither has read what the other has written.
func TestBothEndsClose(t *testing.T) {
	ends(t, func(t *testing.T, a, b net.Conn) {
		for _, c := range []net.Conn{a, b} {
			_, err := c.Write([]byte("hello"))
			require.NoError(t, err)
		}
		synctest.Wait()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

func TestAWriterWaitsForRoom(t *testing.T) {
	ends(t, func(t *testing.T, a, b net.Conn) {
		written := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 3*socketBuffer))
			written <- err
		}()
		time.Sleep(time.Hour)
		require.Empty(t, written)
		require.NoError(t, b.Close())
		synctest.Wait()
		require.Len(t, written, 1, "with an error, or thrown away by the other end")
		require.NoError(t, a.Close())
	})
}
