package stats

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{100, 1, 1, 1, 1}, 1},
	} {
		require.Equal(t, c.want, Median(c.values), "Median(%v)", c.values)
	}
	require.True(t, math.IsNaN(Median(nil)), "Median of nothing")
}

func TestMedianLeavesTheOrder(t *testing.T) {
	values := []float64{3, 1, 2}
	Median(values)
	require.Equal(t, []float64{3, 1, 2}, values)
}

func TestMedianInterval(t *testing.T) {
	for n, skip := range map[int]int{6: 0, 8: 0, 9: 1, 11: 1, 12: 2, 20: 5, 100: 39} { // as tables of the sign test have it
		var values []float64
		for i := range n {
			values = append(values, float64(n-i))
		}
		low, high := MedianInterval(values)
		require.Equal(t, []float64{float64(1 + skip), float64(n - skip)}, []float64{low, high}, "%d values", n)
	}
	for n := range 6 {
		low, high := MedianInterval(make([]float64, n))
		require.True(t, math.IsNaN(low) && math.IsNaN(high), "%d values", n)
	}
}

func TestMean(t *testing.T) {
	require.Equal(t, 3.0, Mean([]float64{1, 2, 6}))
}

func TestHistogramBucketsAreNarrow(t *testing.T) {
	for v := uint64(0); v < 1<<40; v += 1 + v/97 {
		got := float64(middleOf(bucketOf(v)))
		require.InDelta(t, v, got, float64(v)/subBuckets)
	}
}

func TestHistogramQuantiles(t *testing.T) {
	var a, b Histogram
	for i := 1; i <= 1000; i++ {
		h := &a
		if i%2 == 0 {
			h = &b
		}
		h.Record(time.Duration(i) * time.Microsecond)
	}
	a.Merge(&b)
	require.Equal(t, uint64(1000), a.Count())
	for q, want := range map[float64]time.Duration{
		0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond,
	} {
		got := a.Quantile(q)
		require.InDelta(t, want, got, float64(want)/subBuckets, "quantile %v", q)
	}
}

func TestHistogramTakesAnyDuration(t *testing.T) {
	var h Histogram
	require.Zero(t, h.Quantile(0.5), "an empty histogram has a median")
	h.Record(-time.Second)
	h.Record(math.MaxInt64)
	require.Zero(t, h.Quantile(0), "the smallest")
	require.GreaterOrEqual(t, h.Quantile(1), time.Duration(math.MaxInt64/65*64), "the largest")
}
