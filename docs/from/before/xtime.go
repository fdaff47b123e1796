package before

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
)

func xtime(ctx context.Context) error {
	limiter := rate.NewLimiter(rate.Every(100*time.Millisecond), 20)
	if !limiter.Allow() {
		return errors.New("too many requests")
	}
	if err := limiter.Wait(ctx); err != nil {
		return err
	}
	reservation := limiter.ReserveN(time.Now(), 5)
	if !reservation.OK() || reservation.Delay() > time.Second {
		reservation.Cancel()
		return errors.New("too long")
	}
	time.Sleep(reservation.Delay())
	limiter.SetLimit(50)
	limiter.SetBurst(100)
	return nil
}
