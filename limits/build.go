package limits

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/limits/yamlfile"
)

// A built is the limiter of a limit, or its holder.
type built struct {
	from    limit
	limiter ratelimit.Limiter
	holder  ratelimit.Holder
}

// A planError is what a constructor refused: the rule of a plan, or, if plan is empty, of the limit itself.
type planError struct {
	plan string
	error
}

func (e *planError) Unwrap() error { return e.error }

func (e *planError) in() string {
	if e == nil || e.plan == "" {
		return ""
	}
	return ", plan " + yamlfile.Shown(e.plan)
}

// locals are limiters in memory by the names of limiters, which keep what they have counted when the rule changes.
type locals map[localKey]local

type localKey struct{ name, begin string }

type local struct {
	bucket   *ratelimit.LocalTokenBucket
	inFlight *ratelimit.LocalInFlight
}

// build makes what decides for a limit.
func build(c ratelimit.Client, name string, l limit, kept locals, o Options, b *ratelimit.Breaker) (built, error) {
	w := work{c, l, kept, o}
	got := built{from: l}
	policies := w.policies(b)
	if l.holds() {
		primary, err := byPlan(w, o.planOf(), ratelimit.AllowHolds(), ratelimit.DenyHolds(), w.holder, ratelimit.NewHoldChoice)
		if err != nil || l.outage == nil {
			got.holder = primary
			return got, err
		}
		secondary, err := byPlan(w, o.planOf(), ratelimit.AllowHolds(), ratelimit.DenyHolds(), w.localHolder, ratelimit.NewHoldChoice)
		if err != nil {
			return built{}, err
		}
		got.holder, err = ratelimit.NewHoldFallback(primary, secondary, policies...)
		return got, err
	}
	primary, err := byPlan(w, o.planOf(), ratelimit.AllowAll(), ratelimit.DenyAll(), w.limiter, ratelimit.NewChoice)
	if err != nil {
		return built{}, err
	}
	if l.cache != nil {
		if primary, err = ratelimit.NewDenyCache(primary, w.cached()...); err != nil {
			return built{}, err
		}
	}
	if got.limiter = primary; l.outage == nil {
		return got, nil
	}
	secondary, err := byPlan(w, o.planOf(), ratelimit.AllowAll(), ratelimit.DenyAll(), w.localLimiter, ratelimit.NewChoice)
	if err != nil {
		return built{}, err
	}
	got.limiter, err = ratelimit.NewFallback(primary, secondary, policies...)
	return got, err
}

// work is what a limit is built of.
type work struct {
	client ratelimit.Client
	limit  limit
	locals locals
	Options
}

// plans are the names of the plans of the limit, or of any of the limits that it is made of.
func (w work) plans() map[string]bool {
	all := map[string]bool{}
	for _, l := range append(w.limit.parts, w.limit) {
		for plan := range l.plans {
			all[plan] = true
		}
	}
	return all
}

// byPlan is the limiter or holder of a limit, or a choice of those of its plans.
func byPlan[L any, C any](w work, planOf func(context.Context, string) string, allow, deny L, of func(plan string) (L, error),
	choice func(func(context.Context, string) (L, error)) (C, error)) (L, error) {
	var none L
	own := func(plan string) (L, error) {
		switch w.constant(plan) {
		case unlimited:
			return allow, nil
		case denied:
			return deny, nil
		}
		l, err := of(plan)
		if err != nil {
			return none, &planError{plan, err}
		}
		return l, nil
	}
	usual, err := own("")
	plans := w.plans()
	if err != nil || len(plans) == 0 {
		return usual, err
	}
	byName := map[string]L{}
	for plan := range plans {
		if byName[plan], err = own(plan); err != nil {
			return none, err
		}
	}
	c, err := choice(func(ctx context.Context, key string) (L, error) {
		if l, ok := byName[planOf(ctx, key)]; ok {
			return l, nil
		}
		return usual, nil
	})
	if err != nil {
		return none, err
	}
	return any(c).(L), nil
}

// constant is unlimited if all rules of a plan are, denied if one is, else "".
func (w work) constant(plan string) string {
	rules := w.rules(plan)
	if len(rules) == 0 {
		return unlimited
	}
	for _, r := range rules {
		if r.constant == denied {
			return denied
		}
	}
	return ""
}

// rules are those that hold for a plan, without those that are unlimited.
func (w work) rules(plan string) (all []rule) {
	parts := w.limit.parts
	if parts == nil {
		parts = []limit{w.limit}
	}
	for _, l := range parts {
		r, ok := l.plans[plan]
		if !ok {
			r = l.rule
		}
		if r.constant != unlimited {
			all = append(all, r)
		}
	}
	return all
}

// onRedis builds the limiter or holder of a rule.
func (w work) onRedis(r rule) (any, error) {
	opts := append([]ratelimit.Option{ratelimit.WithName(r.name)}, w.Options.Limiters...)
	if w.limit.prefix != "" {
		opts = append(opts, ratelimit.WithPrefix(w.limit.prefix))
	}
	if r.headroom != 0 {
		opts = append(opts, ratelimit.WithHeadroom(r.headroom))
	}
	if len(w.Observers) > 0 {
		opts = append(opts, ratelimit.WithObserver(w.Observers...))
	}
	return algorithms[r.algorithm].build(w.client, r, opts)
}

func (w work) limiter(plan string) (ratelimit.Limiter, error) {
	return together(w.rules(plan), func(r rule) (ratelimit.Limiter, error) {
		l, err := w.onRedis(r)
		if err != nil {
			return nil, err
		}
		return l.(ratelimit.Limiter), nil
	})
}

// together is the limiter of rules that all have to allow a call.
func together(rules []rule, of func(rule) (ratelimit.Limiter, error)) (ratelimit.Limiter, error) {
	var all []ratelimit.Limiter
	for _, r := range rules {
		l, err := of(r)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return ratelimit.NewAll(all...)
}

func (w work) holder(plan string) (ratelimit.Holder, error) {
	l, err := w.onRedis(w.rules(plan)[0])
	if err != nil {
		return nil, err
	}
	return l.(ratelimit.Holder), nil
}

// localLimiter decides for a plan while Redis is down.
func (w work) localLimiter(plan string) (ratelimit.Limiter, error) {
	switch w.limit.outage.fallback {
	case "allow":
		return ratelimit.AllowAll(), nil
	case "deny":
		return ratelimit.DenyAll(), nil
	}
	return together(w.rules(plan), w.localBucket)
}

func (w work) localBucket(r rule) (ratelimit.Limiter, error) {
	o := w.limit.outage
	rate, burst := r.local(o.instances)
	at := localKey{r.name, o.begin}
	if had := w.locals[at]; had.bucket != nil {
		return had.bucket.With(rate, burst)
	}
	opts := []ratelimit.Option{ratelimit.WithName(r.name)}
	switch o.begin {
	case "empty":
		opts = append(opts, ratelimit.WithEmptyStart())
	case lastAnswers:
		opts = append(opts, ratelimit.WithLastAnswers())
	}
	l, err := ratelimit.NewLocalTokenBucket(rate, burst, opts...)
	if err != nil {
		return nil, fmt.Errorf("the share of one of %d instances: %w", o.instances, err)
	}
	if w.locals != nil {
		w.locals[at] = local{bucket: l}
	}
	return l, nil
}

func (w work) localHolder(plan string) (ratelimit.Holder, error) {
	o := w.limit.outage
	switch o.fallback {
	case "allow":
		return ratelimit.AllowHolds(), nil
	case "deny":
		return ratelimit.DenyHolds(), nil
	}
	r := w.rules(plan)[0]
	share, at := max(r.size/o.instances, 1), localKey{r.name, inFlight}
	if had := w.locals[at]; had.inFlight != nil {
		return had.inFlight.With(share)
	}
	l, err := ratelimit.NewLocalInFlight(share, ratelimit.WithName(r.name))
	if err == nil && w.locals != nil {
		w.locals[at] = local{inFlight: l}
	}
	return l, err
}

// policies are the options of a Fallback.
func (w work) policies(b *ratelimit.Breaker) []ratelimit.PolicyOption {
	if w.limit.outage == nil {
		return nil
	}
	opts := []ratelimit.PolicyOption{ratelimit.WithBudget(w.limit.outage.budget), ratelimit.WithBreaker(b)}
	if len(w.Observers) > 0 {
		opts = append(opts, ratelimit.WithObserver(w.Observers...))
	}
	return opts
}

// cached are the options of a DenyCache.
func (w work) cached() []ratelimit.PolicyOption {
	var opts []ratelimit.PolicyOption
	if n := w.limit.cache.maxKeys; n != 0 {
		opts = append(opts, ratelimit.WithMaxKeys(n))
	}
	if d := w.limit.cache.maxDenial; d != 0 {
		opts = append(opts, ratelimit.WithMaxDenial(d))
	}
	if len(w.Observers) > 0 {
		opts = append(opts, ratelimit.WithObserver(w.Observers...))
	}
	return opts
}

// breaker makes that of a file.
func (b breaker) breaker(o Options) *ratelimit.Breaker {
	return &ratelimit.Breaker{Failures: b.failures, ProbeEvery: b.probeEvery, Observers: o.Observers}
}
