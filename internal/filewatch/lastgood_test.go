package filewatch

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLastGood(t *testing.T) {
	broken := errors.New("broken")
	var now error
	var value int
	var reports []error
	l := LastGood[int]{Read: func() (int, error) { return value, now }, Report: func(err error) { reports = append(reports, err) }}
	get := func(set int, failing error, want int, wantReports ...error) {
		t.Helper()
		value, now, reports = set, failing, nil
		got, err := l.Get()
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, wantReports, reports)
	}
	now = broken
	_, err := l.Get()
	require.Equal(t, broken, err)
	get(1, nil, 1)
	get(2, nil, 2)
	get(0, broken, 2, broken)
	get(0, broken, 2) // reported once
	other := errors.New("other")
	get(0, other, 2, other)
	get(3, nil, 3, nil)
	get(4, broken, 3, broken)
}
