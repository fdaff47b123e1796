package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// A login never shows whether a user exists: the limits are asked before the user is looked up,
// they also count tries for names that nobody has, and a denial does not say which of the two
// limits denied. Anybody who knows a name can lock out its user for a while; to prevent that,
// replace the limit per user by one per user and known device.
//
// Who goes on after a denial is banned, for longer each time. Operators can do so too, and end it:
//
//	ratelimit pause --name login-address-banned --for 24h ip:192.0.2.1
//	ratelimit lift --name login-user-banned user:2bd806c97f0e…
type login struct {
	perAddress, perUser *ratelimit.Bans
	failures            *ratelimit.SlidingLog // of a user
	address             httplimit.KeyFunc
	check               func(ctx context.Context, user, password string) (bool, error)
}

// The bans of a user are short, because others can bring them about.
var (
	userBans    = []time.Duration{15 * time.Minute, 30 * time.Minute, time.Hour}
	addressBans = []time.Duration{15 * time.Minute, time.Hour, 24 * time.Hour}
)

const (
	window = 15 * time.Minute
	quiet  = 24 * time.Hour // after which bans are forgotten
)

func newLogin(client ratelimit.Client, check func(ctx context.Context, user, password string) (bool, error)) (*login, error) {
	perAddress, _, err1 := banning(client, "login-address", 50, addressBans)
	perUser, failures, err2 := banning(client, "login-user", 5, userBans)
	address, err3 := httplimit.ClientIP(nil) // behind proxies: give it their networks
	return &login{perAddress, perUser, failures, address, check}, errors.Join(err1, err2, err3)
}

// banning is a limit, and the bans of those who go on after its denials.
func banning(client ratelimit.Client, name string, limit int, lengths []time.Duration) (*ratelimit.Bans, *ratelimit.SlidingLog, error) {
	tries, err := ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: limit, Window: window}}, ratelimit.WithName(name))
	if err != nil {
		return nil, nil, err
	}
	banned, err := ratelimit.NewPause(client, ratelimit.WithName(name+"-banned"))
	if err != nil {
		return nil, nil, err
	}
	bans, err := ratelimit.NewBans(tries, banned, lengths, quiet)
	return bans, tries, err
}

const settleTime = time.Second

// ServeHTTP takes a permit from both limits before the password is checked, so that tries at the
// same time are counted too. The address is asked first: one that is banned takes nothing of a user,
// not even for a moment, and so brings about no ban of a user.
//
// A login that succeeds forgets the failures of the user, but not the bans: it shows that the user
// has come, not that whoever guesses has gone, and it must not lift what an operator has paused
// meanwhile. After a quiet day they are forgotten. The address gets back only the permit of this
// try: otherwise an attacker could reset its limit by logging in to an account of his own now and
// then.
func (l *login) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	user := strings.ToLower(strings.TrimSpace(r.PostFormValue("user"))) // as check reads names
	userKey := "user:" + hashed(user)
	address, err := l.address(r)
	if err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	ofAddress, try, err := l.perAddress.Estimate(ctx, address, 1)
	if err == nil && try.Allowed {
		if try, err = l.perUser.TryAcquire(ctx, userKey); err == nil && !try.Allowed {
			err = ofAddress.Settle(ctx, 0)
		}
	}
	if err != nil { // fail closed
		log.Print(err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	if !try.Allowed {
		// Only the time: the rest of the result would say which limit denied.
		httplimit.Deny(w, r, httplimit.Decision{Policy: "login", Result: ratelimit.Result{RetryAfter: try.RetryAfter}})
		return
	}
	ok, err := l.check(ctx, user, r.PostFormValue("password"))
	switch {
	case err != nil: // the try stays counted: nobody knows whether the password was right
		log.Print(err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	case !ok:
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := errors.Join(l.failures.Reset(ctx, userKey), ofAddress.Settle(ctx, 0)); err != nil {
		log.Print(err) // the try counts a while longer
	}
	fmt.Fprintln(w, "welcome")
}

// hashed makes keys short, and hides names from operators who see the keys.
func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
