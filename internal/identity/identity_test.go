package identity

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSame(t *testing.T) {
	one, other := new(int), new(int)
	require.True(t, Same(one, one))
	require.False(t, Same(one, other))
	require.False(t, Same(nil, one))
	slice := struct{ s []int }{}
	require.False(t, Same(slice, slice), "it cannot be compared")
}

func TestIsNil(t *testing.T) {
	require.True(t, IsNil(nil))
	require.True(t, IsNil((*int)(nil)))
	require.False(t, IsNil(new(int)))
	require.False(t, IsNil(0))
}
