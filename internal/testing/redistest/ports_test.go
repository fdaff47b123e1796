package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAPortStaysClaimed: the port of a server that is down is nobody else's.
func TestAPortStaysClaimed(t *testing.T) {
	port, err := freePort(true)
	require.NoError(t, err)
	require.False(t, claim(port))
	require.False(t, claim(port+busOffset))
}
