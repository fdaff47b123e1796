package stats

import (
	"math"
	"testing"
	"time"
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
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
	if got := Median(nil); !math.IsNaN(got) {
		t.Errorf("Median of nothing = %v, want NaN", got)
	}
}

func TestMedianLeavesTheOrder(t *testing.T) {
	values := []float64{3, 1, 2}
	Median(values)
	if values[0] != 3 || values[1] != 1 || values[2] != 2 {
		t.Errorf("now %v", values)
	}
}

func TestMean(t *testing.T) {
	if got := Mean([]float64{1, 2, 6}); got != 3 {
		t.Errorf("got %v, want 3", got)
	}
}

func TestHistogramBucketsAreNarrow(t *testing.T) {
	for v := uint64(0); v < 1<<40; v += 1 + v/97 {
		got := float64(middleOf(bucketOf(v)))
		if math.Abs(got-float64(v)) > float64(v)/subBuckets {
			t.Fatalf("%d is counted as %v", v, got)
		}
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
	if a.Count() != 1000 {
		t.Fatalf("count %d", a.Count())
	}
	for q, want := range map[float64]time.Duration{
		0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond,
	} {
		if got := a.Quantile(q); math.Abs(float64(got-want)) > float64(want)/subBuckets {
			t.Errorf("quantile %v = %v, want about %v", q, got, want)
		}
	}
}

func TestHistogramTakesAnyDuration(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
	h.Record(-time.Second)
	h.Record(math.MaxInt64)
	if got := h.Quantile(0); got != 0 {
		t.Errorf("the smallest is %v, want 0", got)
	}
	if got := h.Quantile(1); got < math.MaxInt64/65*64 {
		t.Errorf("the largest is %v", got)
	}
}
