package gcra

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// missing is l in permits.
func (b *Bucket) missing(l Level) *big.Rat {
	units := big.NewRat(l.Units, b.permit)
	return units.Add(units, new(big.Rat).SetInt64(l.Permits))
}

func TestArithmeticIsExact(t *testing.T) {
	for range 20_000 {
		count, period := 1+rand.Int64N(1_000_000), time.Duration(1+rand.Int64N(int64(time.Hour/time.Microsecond)))*time.Microsecond
		b := New(count, period, 1+rand.Int64N(1_000), time.Duration(rand.Int64N(3))*time.Millisecond)
		perMicro := big.NewRat(count, period.Microseconds())
		l := Level{rand.Int64N(b.Size + 1), rand.Int64N(b.permit)}
		restored := func(micros int64) *big.Rat {
			r := new(big.Rat).SetInt64(micros)
			return r.Mul(r, perMicro)
		}

		needs := b.Restores(l)
		require.Zero(t, needs%b.every, "%+v: a part of a step", b)
		require.GreaterOrEqual(t, restored(needs).Cmp(b.missing(l)), 0, "%+v, %+v: too early", b, l)
		require.Negative(t, restored(needs-b.every).Cmp(b.missing(l)), "%+v, %+v: too late", b, l)
		require.Equal(t, Level{}, b.Minus(l, needs), "%+v, %+v", b, l)

		passed := rand.Int64N(needs + 1)
		want := b.missing(l)
		if want.Sub(want, restored(passed)); want.Sign() < 0 {
			want.SetInt64(0)
		}
		require.Zero(t, want.Cmp(b.missing(b.Minus(l, passed))), "%+v, %+v after %d µs", b, l, passed)
	}
}
