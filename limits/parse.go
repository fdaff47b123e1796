package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/limits/yamlfile"
)

// Check returns nil if text is a file of limits that can be put in force, else an error that wraps
// ratelimit.ErrInvalidConfig and has a line for each mistake, such as
//
//	limits.yaml:4: limit api: burts is no field here; did you mean burst?
//
// file is the name in these lines. Nothing is read, and Redis is not asked.
func Check(file string, text []byte) error {
	_, err := parse(file, text)
	return err
}

// A parser reads one file.
type parser struct {
	file    *yamlfile.File
	outages map[string]*outage
	breaker breaker
	prefix  string
	raw     map[string]yamlfile.Map
	limits  map[string]limit
	bad     map[string]bool // limits with mistakes
}

func parse(name string, text []byte) (config, error) {
	file, root := yamlfile.Parse(name, text)
	if err := file.Err(); err != nil {
		return config{}, err
	}
	p := &parser{file: file, raw: map[string]yamlfile.Map{}, limits: map[string]limit{}, bad: map[string]bool{}}
	root.Only("prefix", "breaker", "outages", "limits")
	p.readPrefix(root.Get("prefix"))
	p.readBreaker(root.Get("breaker"))
	p.readOutages(root.Get("outages").Map())
	all := root.Must("limits", "name the limits, such as \"limits: {api: {algorithm: token_bucket, rate: 100/m, burst: 20}}\"").Map()
	for _, f := range all.Fields() {
		p.mistaken(f.Name, func() { p.raw[f.Name] = f.Value.Map().Called("limit " + yamlfile.Shown(f.Name)) })
	}
	for _, f := range all.Fields() {
		if !p.bad[f.Name] {
			p.mistaken(f.Name, func() { p.limits[f.Name] = p.readLimit(f.Name) })
		}
	}
	for _, f := range all.Fields() {
		if p.raw[f.Name].Get("all").Given() {
			p.mistaken(f.Name, func() { p.readParts(f.Name) })
		}
	}
	for _, ofOthers := range []bool{false, true} {
		for _, f := range all.Fields() {
			if ofOthers == (p.limits[f.Name].parts != nil) && !p.bad[f.Name] && !slices.ContainsFunc(p.limits[f.Name].all, func(part string) bool { return p.bad[part] }) {
				p.mistaken(f.Name, func() { p.try(f.Name) })
			}
		}
	}
	return config{p.limits}, file.Err()
}

// mistaken notes whether read finds mistakes in a limit.
func (p *parser) mistaken(name string, read func()) {
	before := p.file.Mistakes()
	read()
	p.bad[name] = p.bad[name] || p.file.Mistakes() > before
}

func (p *parser) readPrefix(v yamlfile.Value) {
	text := v.Text()
	if text == "" {
		return
	}
	if _, err := ratelimit.NewFixedWindow(noClient{}, 1, time.Second, ratelimit.WithPrefix(text)); err != nil {
		v.Errorf("cannot work: %s", strings.TrimPrefix(yamlfile.Plain(err), "WithPrefix: "))
		return
	}
	p.prefix = text
}

func (p *parser) readBreaker(v yamlfile.Value) {
	m := v.Map()
	m.Only("failures", "probe_every")
	p.breaker = breaker{m.Get("failures").Int(1, 1<<31-1), atLeast(m.Get("probe_every"), time.Millisecond)}
}

// atLeast is a duration of at least d, 0 if it is not given.
func atLeast(v yamlfile.Value, d time.Duration) time.Duration {
	got := v.Duration()
	if v.Given() && got != 0 && got < d {
		v.Errorf("is %v; write at least %v", got, d)
	}
	return got
}

// ofAll is the name of the policy of limits that name none, and noOutage what a limit writes that has none.
const (
	ofAll    = "default"
	noOutage = "none"
)

func (p *parser) readOutages(m yamlfile.Map) {
	p.outages = map[string]*outage{}
	for _, f := range m.Fields() {
		o := f.Value.Map().Called("outage " + yamlfile.Shown(f.Name))
		if f.Name == noOutage {
			o.Errorf("the name none is for limits that have no policy; choose another one")
			continue
		}
		var got outage
		before := p.file.Mistakes()
		got.fallback = o.Must("fallback", "write allow, deny or local").OneOf("allow", "deny", "local")
		got.budget = atLeast(o.Must("budget", "write how long a call may wait for Redis, such as 20ms"), time.Microsecond)
		if got.fallback == "local" {
			o.Only("fallback", "budget", "instances", "begin")
			got.instances = o.Must("instances", "write by how many processes the limits are divided, such as 4").Int(1, 100_000)
			got.begin = cmp.Or(o.Get("begin").OneOf("full", "empty", lastAnswers), "full")
		} else {
			o.Only("fallback", "budget")
		}
		p.outages[f.Name] = &got
		if p.file.Mistakes() > before {
			p.outages[f.Name] = nil // its name is known all the same
		}
	}
}

// common are the fields of every limit.
var common = []string{"algorithm", "name", "plans", "outage", "deny_cache"}

func (p *parser) readLimit(name string) limit {
	m := p.raw[name]
	l := limit{prefix: p.prefix}
	if m.Get("all").Given() {
		m.Only("all", "outage", "deny_cache")
	} else {
		algorithmName := m.Must("algorithm", "write "+yamlfile.Or(names(algorithms))).OneOf(names(algorithms)...)
		a, ok := algorithms[algorithmName]
		if !ok {
			return l
		}
		fields := slices.Concat(common, a.fields)
		if algorithmName == inFlight {
			fields = slices.DeleteFunc(fields, func(f string) bool { return f == "deny_cache" })
		}
		m.Only(fields...)
		l.rule = readRule(algorithmName, m, rule{algorithm: algorithmName, name: cmp.Or(m.Get("name").Text(), name)})
		for _, f := range a.required {
			m.Must(f, "write one, such as \""+f+": "+examples[f]+"\"")
		}
		p.readPlans(m, &l)
	}
	l.outage = p.outageOf(m.Get("outage"))
	if l.outage != nil {
		l.probing = p.breaker
	}
	l.cache = readCache(m.Get("deny_cache"))
	return l
}

func (p *parser) outageOf(v yamlfile.Value) *outage {
	if !v.Given() {
		return p.outages[ofAll]
	}
	name := v.OneOf(append(names(p.outages), noOutage)...)
	return p.outages[name]
}

func readCache(v yamlfile.Value) *cache {
	switch {
	case !v.Given():
		return nil
	case v.IsText():
		if !v.Bool() {
			return nil
		}
		return &cache{}
	}
	m := v.Map()
	m.Only("max_keys", "max_denial")
	return &cache{m.Get("max_keys").Int(1, 1<<26), atLeast(m.Get("max_denial"), time.Millisecond)}
}

// readPlans reads the plans of a limit. A plan has the fields of the limit, except for those that it gives anew.
func (p *parser) readPlans(m yamlfile.Map, l *limit) {
	v := m.Get("plans")
	for _, f := range v.Map().Fields() {
		if l.plans == nil {
			l.plans = map[string]rule{}
		}
		if f.Value.IsText() {
			l.plans[f.Name] = rule{constant: f.Value.OneOf(unlimited, denied)}
			continue
		}
		plan := f.Value.Map().Called(m.Name() + ", plan " + yamlfile.Shown(f.Name))
		fields := slices.DeleteFunc(slices.Clone(algorithms[l.rule.algorithm].fields), func(f string) bool { return f == "storage" })
		plan.Only(fields...)
		l.plans[f.Name] = readRule(l.rule.algorithm, plan, l.rule)
	}
}

// readRule reads the fields of an algorithm; those that are not given are those of r.
func readRule(algorithmName string, m yamlfile.Map, r rule) rule {
	set := func(name string, read func(v yamlfile.Value)) {
		if v := m.Get(name); v.Given() && slices.Contains(algorithms[algorithmName].fields, name) {
			read(v)
		}
	}
	for _, size := range []string{"burst", "capacity", "limit"} {
		set(size, func(v yamlfile.Value) { r.size = v.Int(1, exact.Permits) })
	}
	set("rate", func(v yamlfile.Value) { r.rates = []ratelimit.Rate{v.Rate()} })
	set("rates", func(v yamlfile.Value) {
		r.rates = nil
		for _, rate := range v.List() {
			r.rates = append(r.rates, rate.Rate())
		}
	})
	set("headroom", func(v yamlfile.Value) { r.headroom = v.Int(0, exact.Permits) })
	set("refill_every", func(v yamlfile.Value) { r.refillEvery = atLeast(v, time.Millisecond) })
	set("align", func(v yamlfile.Value) { r.aligned, r.align = true, v.Duration() })
	set("storage", func(v yamlfile.Value) { r.storage = v.OneOf(names(storages)...) })
	set("sub_windows", func(v yamlfile.Value) { r.subWindows = v.Int(1, 100_000) })
	set("resolution", func(v yamlfile.Value) { r.resolution = atLeast(v, time.Microsecond) })
	set("lease", func(v yamlfile.Value) { r.lease = v.Duration() })
	if algorithmName == "calendar_window" {
		readCalendar(m, &r)
	}
	return r
}

// readCalendar reads the fields of a calendar. A plan that gives another period has the first day of that.
func readCalendar(m yamlfile.Map, r *rule) {
	if v := m.Get("every"); v.Given() {
		r.every, r.firstDay, r.day = v.OneOf("day", "week", "month"), "monday", 1
	}
	if v := m.Get("first_day"); v.Given() {
		if r.firstDay = v.OneOf(weekdayNames...); r.every != "week" && r.every != "" {
			v.Errorf("is for weeks; leave it out")
		}
	}
	if v := m.Get("day"); v.Given() {
		if r.day = v.Int(1, 31); r.every != "month" && r.every != "" {
			v.Errorf("is for months; leave it out")
		}
	}
	if v := m.Get("time_zone"); v.Given() {
		r.zone = v.Text()
		if _, err := time.LoadLocation(r.zone); r.zone == "Local" || err != nil {
			v.Errorf("is %q, which is no time zone here; write a name such as Europe/Berlin or UTC", r.zone)
		}
	}
}

// readParts finds the limits of which a limit is made.
func (p *parser) readParts(name string) {
	v := p.raw[name].Get("all")
	l := p.limits[name]
	elements := v.List()
	if len(elements) == 0 {
		v.Errorf("names no limit; write two to eight, such as [second, day]")
	}
	if l.outage != nil && l.outage.begin == lastAnswers {
		p.raw[name].Get("outage").Errorf("is a policy that begins with last_answers, which a limit made of others does not hear; name another policy, or none")
	}
	for _, e := range elements {
		simple := slices.DeleteFunc(names(p.raw), func(other string) bool { return p.raw[other].Get("all").Given() })
		part := e.Text()
		switch other, ok := p.limits[part]; {
		case part == "":
		case !ok:
			e.Errorf("is %q, which is no limit of this file; %s", part, yamlfile.Instead(part, simple))
		case p.raw[part].Get("all").Given():
			e.Errorf("is %q, which is made of others itself; name those", part)
		case other.holds():
			e.Errorf("is %q, which holds permits; let the program decide them together by ClaimHold", part)
		case slices.Contains(l.all, part):
			e.Errorf("is %q, which is named twice", part)
		default:
			l.all, l.parts = append(l.all, part), append(l.parts, other)
		}
	}
	p.limits[name] = l
}

// try builds a limit, and puts the error of a constructor to the field that it is about.
func (p *parser) try(name string) {
	l := p.limits[name]
	l.cache = nil // it would take memory, and readCache has checked it
	_, err := build(noClient{}, name, l, nil, Options{}, new(ratelimit.Breaker))
	if err == nil {
		return
	}
	m, text := p.raw[name], yamlfile.Plain(err)
	var of *planError
	if errors.As(err, &of) {
		text = yamlfile.Plain(of.error)
		if of.plan != "" {
			m = m.Get("plans").Map()
			if v := m.Get(of.plan); !v.IsText() {
				m = v.Map().Called("limit " + yamlfile.Shown(name) + of.in())
			}
		}
	}
	for _, w := range words {
		if strings.Contains(text, w.says) && (m.Get(w.field).Given() || w.field == "name") {
			p.file.Errorf(m.Get(w.field).Line(), "limit %s%s: %s", yamlfile.Shown(name), of.in(), inFields(text))
			return
		}
	}
	m.Called("limit "+name+of.in()).Errorf("%s", inFields(text))
}

// inFields is the text of a constructor's error in the words of a file.
func inFields(text string) string {
	for _, w := range words {
		if strings.HasPrefix(w.says, "With") {
			text = strings.ReplaceAll(text, w.says, w.field)
		}
	}
	return text
}

// words are those by which the constructors call the fields.
var words = []struct{ says, field string }{
	{"WithHeadroom", "headroom"},
	{"WithRefillEvery", "refill_every"},
	{"WithSubWindows", "sub_windows"},
	{"WithResolution", "resolution"},
	{"WithStorage", "storage"},
	{"WithAlignment", "align"},
	{"WithPrefix", "prefix"},
	{"sub-windows", "sub_windows"},
	{"WithName", "name"},
	{" burst ", "burst"},
	{" capacity ", "capacity"},
	{"the lease", "lease"},
	{"the window", "rate"},
	{"the limit", "limit"},
	{"the rule", "rates"},
	{" colon", "name"},
	{"id of an algorithm", "name"},
}

// A noClient is the client of limiters that are only built.
type noClient struct{}

func (noClient) Process(context.Context, redis.Cmder) error {
	return fmt.Errorf("ratelimit/limits: there is no client")
}
