package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tryacquire/ratelimit"
)

// An account is an API key with its limits.
type account struct {
	team, key string // names
	teamMonth *ratelimit.CalendarWindow
	keyMonth  *ratelimit.CalendarWindow
	tokens    *ratelimit.TokenBucket
	running   *ratelimit.InFlight
	upstream  *ratelimit.Pause // of all accounts
	burst     int              // of tokens
}

// tag is in all keys, so that one script decides all limits, also on a Cluster.
const tag = "{gateway}"

func teamID(team string) string     { return tag + ":team:" + team }
func keyID(team, key string) string { return teamID(team) + ":key:" + key }

// The parts of a decision, in the order of claims.
const (
	upstreamPart = iota
	teamPart
	keyPart
	tokensPart
	runningPart
)

// budgets are the parts that are counted in micro-dollars.
var budgets = [...]int{teamPart, keyPart}

// claims are those of a call that takes so many tokens and micro-dollars, as far as that is known before it.
func (a *account) claims(tokens, money int) []ratelimit.Claim {
	id := keyID(a.team, a.key)
	return []ratelimit.Claim{
		upstreamPart: ratelimit.ClaimOf(a.upstream, tag, 1),
		teamPart:     ratelimit.ClaimOf(a.teamMonth, teamID(a.team), money).Estimate(),
		keyPart:      ratelimit.ClaimOf(a.keyMonth, id, money).Estimate(),
		tokensPart:   ratelimit.ClaimOf(a.tokens, id, tokens).Estimate(),
		runningPart:  ratelimit.ClaimHold(a.running, id, 1),
	}
}

// accounts are all accounts, by the SHA-256 of their secrets: so the time of a look-up says nothing of them.
type accounts map[[sha256.Size]byte]*account

// newAccounts makes the limits of all keys. lease is for how long a process that dies keeps what it has reserved.
func newAccounts(client ratelimit.Client, c config, lease time.Duration) (accounts, error) {
	upstream, err := ratelimit.NewPause(client, ratelimit.WithName("upstream"), ratelimit.WithProbe(probeTime))
	if err != nil {
		return nil, err
	}
	all := accounts{}
	for teamName, t := range c.Teams {
		teamMonth, err := month(client, "team", int(t.Month), lease)
		if err != nil {
			return nil, fmt.Errorf("team %s: %w", teamName, err)
		}
		for name, k := range t.Keys {
			keyMonth, err1 := month(client, "key", int(k.Month), lease)
			tokens, err2 := ratelimit.NewTokenBucket(client, ratelimit.PerMinute(k.TokensPerMinute), k.TokensPerMinute,
				ratelimit.WithName("tokens"), ratelimit.WithTicketLease(lease))
			running, err3 := ratelimit.NewInFlight(client, k.Running, lease, ratelimit.WithName("running"))
			secret := sha256.Sum256([]byte(k.Secret))
			var err4 error
			if k.Secret == "" || all[secret] != nil {
				err4 = errors.New("it needs a secret of its own")
			}
			if err := errors.Join(err1, err2, err3, err4); err != nil {
				return nil, fmt.Errorf("key %s of team %s: %w", name, teamName, err)
			}
			all[secret] = &account{teamName, name, teamMonth, keyMonth, tokens, running, upstream, k.TokensPerMinute}
		}
	}
	return all, nil
}

// month is a budget of a calendar month. Estimates come back after the lease of a process that died.
func month(client ratelimit.Client, name string, limit int, lease time.Duration) (*ratelimit.CalendarWindow, error) {
	return ratelimit.NewCalendarWindow(client, limit, ratelimit.Monthly(1, time.UTC), ratelimit.WithName(name), ratelimit.WithTicketLease(lease))
}

// A ledger reads what was spent. Its limiters have the names of the budgets, and so their state, but a limit that nobody
// reaches: what is missing of it was spent, also beyond the budget.
type ledger struct{ teams, keys *ratelimit.CalendarWindow }

const noLimit = min(1_000_000_000_000, math.MaxInt)

func newLedger(client ratelimit.Client, lease time.Duration) (ledger, error) {
	teams, err1 := month(client, "team", noLimit, lease)
	keys, err2 := month(client, "key", noLimit, lease)
	return ledger{teams, keys}, errors.Join(err1, err2)
}

func (l ledger) team(ctx context.Context, team string) (spent int, err error) {
	r, err := l.teams.Peek(ctx, teamID(team))
	return noLimit - r.Remaining, err
}

func (l ledger) key(ctx context.Context, team, key string) (spent int, err error) {
	r, err := l.keys.Peek(ctx, keyID(team, key))
	return noLimit - r.Remaining, err
}
