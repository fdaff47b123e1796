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
type login struct {
	perUser, perAddress *ratelimit.SlidingLog
	address             httplimit.KeyFunc
	check               func(ctx context.Context, user, password string) (bool, error)
}

func newLogin(client ratelimit.Client, check func(ctx context.Context, user, password string) (bool, error)) (*login, error) {
	const window = 15 * time.Minute
	perUser, err1 := ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 5, Window: window}}, ratelimit.WithName("login-user"))
	perAddress, err2 := ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 50, Window: window}}, ratelimit.WithName("login-address"))
	address, err3 := httplimit.ClientIP(nil) // behind proxies: give it their networks
	return &login{perUser, perAddress, address, check}, errors.Join(err1, err2, err3)
}

const settleTime = time.Second

// ServeHTTP takes a permit from both limits before the password is checked, so that tries at the
// same time are counted too. A login that succeeds resets the limit of the user. The address gets
// back only the permit of this try: otherwise an attacker could reset its limit by logging in to an
// account of his own now and then.
func (l *login) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	user := strings.ToLower(strings.TrimSpace(r.PostFormValue("user"))) // as check reads names
	userKey := "user:" + hashed(user)
	address, err := l.address(r)
	if err != nil {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	tries, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(l.perUser, userKey, 1), ratelimit.ClaimOf(l.perAddress, address, 1).Estimate())
	if err != nil { // fail closed
		log.Print(err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	if !tries.Allowed {
		// Only the time: the rest of the result would say which limit denied.
		httplimit.Deny(w, r, httplimit.Decision{Policy: "login", Result: ratelimit.Result{RetryAfter: tries.RetryAfter}})
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
	if err := errors.Join(l.perUser.Reset(ctx, userKey), tries.Parts[1].Ticket.Settle(ctx, 0)); err != nil {
		log.Print(err) // the try counts a while longer
	}
	fmt.Fprintln(w, "welcome")
}

// hashed makes keys short, and hides names from operators who see the keys.
func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
