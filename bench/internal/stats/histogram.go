package stats

import (
	"math"
	"math/bits"
	"time"
)

// A Histogram counts durations in buckets that are at most 1/64 of the duration
// wide. Recording takes a few nanoseconds and does not allocate. It is not safe
// for concurrent use: every goroutine has its own, merged in the end.
type Histogram struct {
	counts [subBuckets * octaves]uint32
	total  uint64
}

const (
	subBits    = 6
	subBuckets = 1 << subBits
	octaves    = 64 - subBits
)

// Record counts d; a negative one as zero.
func (h *Histogram) Record(d time.Duration) {
	h.counts[bucketOf(uint64(max(d, 0)))]++
	h.total++
}

// Merge adds what other has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
}

// Count is how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.total }

// Quantile is the duration that a share q of all does not exceed, give or take
// the width of a bucket. It is 0 for an empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := uint64(math.Ceil(q * float64(h.total)))
	seen := uint64(0)
	for i, n := range h.counts {
		seen += uint64(n)
		if n > 0 && seen >= rank {
			return middleOf(i)
		}
	}
	return 0
}

// bucketOf: values below 64 have buckets of their own; above, each doubling has
// 64 of equal width.
func bucketOf(v uint64) int {
	shift := max(bits.Len64(v)-subBits-1, 0)
	return min(shift*subBuckets+int(v>>shift), subBuckets*octaves-1)
}

func middleOf(bucket int) time.Duration {
	shift := max(bucket/subBuckets-1, 0)
	low := uint64(bucket-shift*subBuckets) << shift
	return time.Duration(low + (uint64(1)<<shift)/2)
}
