// Package stats holds the arithmetic of the figures.
package stats

import (
	"math"
	"slices"
)

// Median is the middle value, or the mean of the two in the middle. It is NaN
// for no values, and leaves them in their order.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Mean is NaN for no values.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// MedianInterval is the narrowest interval between two of the values, as many from either
// end, that holds the median of what the values are samples of with a confidence of at
// least 95 %. It assumes nothing about their distribution. Both ends are NaN for fewer
// than six values, which give no such interval.
func MedianInterval(values []float64) (low, high float64) {
	n := len(values)
	// Each value is below the median as often as above it: so many heads of n coins.
	outside, ways, skip := 0.0, math.Pow(0.5, float64(n)), -1
	for k := 0; 2*k < n; k++ {
		if outside += 2 * ways; outside > 0.05 {
			break
		}
		skip = k
		ways *= float64(n-k) / float64(k+1)
	}
	if skip < 0 {
		return math.NaN(), math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[skip], sorted[n-1-skip]
}
