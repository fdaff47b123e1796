package vectors

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/testing/model"
)

const (
	withSlices = "with slices, of which Leased spends the permits in memory. In front of the words stands for how long, in microseconds, and behind them a ticket"
	sliceID    = 77
)

// A lease asks for a slice: up to most permits for at most long microseconds, and at least those that callers wait for, if they fit.
type lease struct{ most, waiting, shortest, long, id int64 }

// leaseOf reads "<most>d<waiting>/<shortest>/<longest>/<id>".
func leaseOf(operation string) (l lease) {
	most, rest, _ := strings.Cut(operation, "d")
	for i, text := range strings.Split(most+"/"+rest, "/") {
		n, _ := strconv.ParseInt(text, 10, 64)
		*[]*int64{&l.most, &l.waiting, &l.shortest, &l.long, &l.id}[i] = n
	}
	return l
}

// size is how many permits a slice gets of those that there is room for: a quarter of them, and at least those that callers wait for.
func (l lease) size(room int64) int64 { return min(l.most, max(min(room, l.waiting), room/4)) }

// A slicedBucket is a token bucket with slices: a level and its time, until when slices may be spent, and how much of them may come
// back. It is one number, and a microsecond restores one unit.
type slicedBucket struct {
	burst, permit int64
	key           kept

	at, missing int64 // units
	ends        int64 // of the last slice; 0: there was none
	epochs      []epoch
}

// An epoch is a time in which slices began. The slack is the least that was missing since, in permits, beyond what had to be.
type epoch struct{ id, began, slack int64 }

func (b *slicedBucket) keys(*Case) []*kept { return []*kept{&b.key} }

// look is what is missing now. Nothing is left to say of slices that have ended, when those that began last are two refills ago.
func (b *slicedBucket) look(now int64) (missing int64) {
	if b.key.state == nil {
		b.ends, b.epochs = 0, nil
		return 0
	}
	missing = max(b.missing-(now-b.at), 0)
	for i := range b.epochs {
		b.epochs[i].slack = min(b.epochs[i].slack, missing/b.permit)
	}
	if n := len(b.epochs); n > 0 && b.ends <= now && now-b.epochs[n-1].began >= 2*b.burst*b.permit {
		b.ends, b.epochs = 0, nil
	}
	return missing
}

// write makes now the instant of the state.
func (b *slicedBucket) write(now, missing int64) {
	b.at, b.missing = now, missing
	b.store(now)
}

// store writes the state, whose instant stays.
func (b *slicedBucket) store(now int64) {
	text := fmt.Sprintf("%016d/%d/%d/1", b.at, b.missing, b.permit)
	if len(b.epochs) > 0 {
		text += fmt.Sprintf("~%d", max(b.ends-b.at, 0))
		for _, e := range b.epochs {
			text += fmt.Sprintf(",%d,%d,%d", e.id, b.at-e.began, e.slack)
		}
	}
	full := max(b.missing-(now-b.at), b.ends-now) // the key lives as long as the slices
	b.key.write(now, text, evenly(full/1000)+3)
}

func (b *slicedBucket) operate(now int64, c *Case) {
	n, kind, _, which := parse(c.Operation)
	before := append([]epoch(nil), b.epochs...)
	missing := b.look(now)
	switch kind {
	case 'x':
		c.Reply = []int64{0, missing, 0, 0}
		if missing+int64(n)*b.permit <= b.burst*b.permit {
			c.Reply[0] = 1
			b.write(now, missing+int64(n)*b.permit)
		}
	case 'd':
		l := leaseOf(c.Operation)
		if l.long > l.shortest { // as long as costs nothing: what is missing is restored in it, but for an eighth of the burst, and its permits
			free := max(l.shortest, min(l.long, missing-b.burst*b.permit/8-l.most*b.permit))
			l.most, l.long = max(min(l.most, l.waiting), l.most*free/l.long), free
		}
		floor := max(missing, l.long) // at the end of the slice so much is missing as is restored until then
		count := l.size((b.burst*b.permit - floor) / b.permit)
		if count < 1 { // waiting callers get permits to be used at once
			count, floor, l.long = min(l.waiting, (b.burst*b.permit-missing)/b.permit), missing, 0
			c.Reply = []int64{0, count, missing, 0, 0, 0, 0}
			b.write(now, missing+count*b.permit)
			return
		}
		spared := max((missing-l.long)/b.permit, 0)
		for i := range b.epochs {
			b.epochs[i].slack = min(b.epochs[i].slack, spared)
		}
		if last := len(b.epochs) - 1; last < 0 || now-b.epochs[last].began >= b.burst*b.permit { // a refill
			b.epochs = append(b.epochs, epoch{l.id, now, b.burst})
			b.epochs = b.epochs[max(len(b.epochs)-2, 0):]
		}
		b.ends = max(b.ends, now+l.long)
		b.write(now, floor+count*b.permit)
		c.Reply = []int64{l.long, count, floor, 0, 0, 0, b.epochs[len(b.epochs)-1].id}
	case 'g':
		c.Reply = []int64{0}
		for _, e := range b.epochs {
			if e.id != which || e.slack < int64(n) {
				continue
			}
			c.Reply[0] = int64(n)
			b.missing -= int64(n) * b.permit
			for i := range before { // the state keeps its instant, and what it said then
				before[i].slack = max(before[i].slack-int64(n), 0)
			}
			b.epochs = before
			b.store(now)
			return
		}
		b.epochs = before
	}
}

func slicesOfBuckets() Group {
	const burst, permit = 100, 100_000
	g := Group{
		Algorithm: "tokenbucket", About: withSlices, Script: "bucket", Key: "ratelimit:default:tokenbucket{k}",
		Rule: map[string]int64{"count": 10, "period": 1_000_000, "burst": burst}, Args: append(texts(burst*permit, permit, 1), "/100000/1"),
	}
	g.Cases = narrate(&slicedBucket{burst: burst, permit: permit}, []step{
		{0, "40d0/1000000/1000000/77", "Ten permits are restored in this second, so ten are missing at least, and a quarter of the other 90 are the slice. It begins an epoch, whose slack is the burst"},
		{200 * time.Millisecond, "5x1", "A plain call. The slack is now the 30 permits that it found missing"},
		{100 * time.Millisecond, "10g0/77", "Ten permits of the slice were not spent. All come back, as at least as many were missing since; the slack is less by them"},
		{0, "30g0/77", "More than the slack: nothing comes back"},
		{800 * time.Millisecond, "8d3/1000000/1000000/78", "The next slice is of the same epoch, so its id is that one's. Six permits more are missing than have to be: the slack"},
		{0, "200d2/9950000/9950000/79", "So long a slice has no room. The two permits for which callers wait are to be used at once"},
		{0, "40x1", "A plain call again. More is missing than the slack of before, so it stays"},
		{time.Second, "18d0/1000000/9000000/80", "It may last from one to nine seconds. In 2.55 all that is missing is restored but for an eighth of the burst and 18 permits, so it costs nothing to last as long; for that it gets 5 permits instead of 18"},
		{5 * time.Second, "8d0/4000000/4000000/81", "Another one of that epoch"},
		{3 * time.Second, "4d0/500000/500000/82", "A refill after the epoch began, another one begins. Of both the slack is known"},
	})
	return g
}

// A slicedWindow is a fixed window with slices, which end with it at the latest. Until they have ended, no rule ends the window.
type slicedWindow struct {
	*window
	key  kept
	ends int64 // of the last slice; 0: there was none
}

func (w *slicedWindow) keys(*Case) []*kept { return []*kept{&w.key} }

func (w *slicedWindow) operate(now int64, c *Case) {
	words, begun := w.words(now), placed(w.m, now)
	switch n, kind, place, _ := parse(c.Operation); kind {
	case 'd':
		l := leaseOf(c.Operation)
		l.waiting = max(l.waiting, 1)
		count, long := l.size(words[0]), min(l.long, words[1])
		w.m.Take(now, int(count), false)
		w.ends = max(w.ends, now+long)
		c.Reply = append(append([]int64{long, count}, words...), begun, 0)
	case 'g':
		w.m.GiveBack(now, n, place)
		c.Reply = []int64{int64(n)}
	}
	text, slices := w.text(now).(string), ""
	if w.ends > now {
		slices = fmt.Sprintf("~%d", w.ends-begun)
	}
	w.key.write(now, text+slices, w.ttl(now))
}

func slicesOfWindows() Group {
	const limit = 20
	g := Group{
		Algorithm: "fixedwindow", About: withSlices, Script: "datedwindow", Key: "ratelimit:default:fixedwindow{k}",
		Rule: map[string]int64{"limit": limit, "window": 60_000_000, "offset": 0}, Args: texts(limit, 60_000_000, 0),
	}
	const begins = start - start%60_000_000
	g.Cases = narrate(&slicedWindow{window: dated(model.NewAlignedWindow(limit, time.Minute, 0), limit)}, []step{
		{7 * time.Second, "10d0/4000000/4000000/77", "A quarter of the window's permits. The state says until when they may be spent, from the start of the window on"},
		{2 * time.Second, "10d9/60000000/60000000/78", "Callers wait for nine. The slice ends with its window"},
		{time.Second, fmt.Sprintf("3g%d/0", int64(begins)), "What was not spent comes back to the window"},
		{0, "7d7/1000000/1000000/79", "A slice that ends sooner does not change until when others may be spent"},
		{0, "5d0/1000000/1000000/80", "A quarter of the last two permits is none. A slice has one of them all the same"},
	})
	return g
}

// slicedDays are the days of a calendar with slices, in which a rule of another time zone counts too. Until the last slice has
// ended, no rule ends the day of which its permits are.
type slicedDays struct {
	limit         int64
	key           kept
	used, written int64
	till, ends    int64 // of the day of which the permits are; of the last slice
}

func (d *slicedDays) keys(*Case) []*kept { return []*kept{&d.key} }

func (d *slicedDays) operate(now int64, c *Case) {
	ahead := int64(0)
	if c.ID != "" { // the zone in which the day begins three hours sooner
		ahead, c.ID = 3*3_600_000_000, ""
		c.Args = daysAround(int(d.limit), now, ahead)
	}
	before, written := *d, false
	defer func() {
		if !written { // a denial changes nothing
			*d = before
		}
	}()
	opens := (now+ahead)/day*day - ahead
	closes := opens + day
	switch {
	case d.key.state == nil || now >= d.till || d.written < opens && now >= d.ends:
		d.used, d.till, d.ends = 0, closes, 0
	case d.written < opens:
		closes = d.ends
	}
	n, kind, place, _ := parse(c.Operation)
	words := []int64{d.limit - d.used, min(d.till, closes) - now, day}
	write := func() {
		text, slices := fmt.Sprintf("%d/%d-%d", d.used, now, d.till), ""
		if d.ends > now {
			slices = fmt.Sprintf("~%d", d.ends-now)
		}
		d.written, written = now, true
		d.key.write(now, text+slices, evenly((d.till-now)/1000)+3)
	}
	switch kind {
	case 'x':
		if c.Reply = append([]int64{0}, words...); d.used+int64(n) <= d.limit {
			d.used, d.till = d.used+int64(n), max(d.till, opens+day)
			c.Reply = []int64{1, words[0], opens + day - now, day}
			write()
		}
	case 'd':
		l := leaseOf(c.Operation)
		l.waiting = max(l.waiting, 1)
		count, long := l.size(words[0]), min(l.long, opens+day-now)
		if count == 0 {
			c.Reply = append(append([]int64{0, 0}, words...), closes, 0)
			return
		}
		d.used, d.till, d.ends = d.used+count, max(d.till, opens+day), max(d.ends, now+long)
		c.Reply = []int64{long, count, words[0], opens + day - now, day, opens + day, 0}
		write()
	case 'g':
		if c.Reply = []int64{0}; place == closes && d.till >= closes {
			d.used, c.Reply[0] = d.used-int64(n), int64(n)
			write()
		}
	}
}

func slicesOfCalendars() Group {
	const limit = 40
	g := ofDays(limit)
	g.About, g.Build = withSlices, nil
	g.Cases = narrate(&slicedDays{limit: limit}, []step{
		{0, "20d0/4000000/4000000/77", "A quarter of the day's permits. The state says until when they may be spent, from when it was written on"},
		{time.Second, "5x1", "A plain call writes the state now, so it is a second less"},
		{time.Second, fmt.Sprintf("4g%d/0", int64(midnight)), "What was not spent comes back to the day, which its end names"},
		{0, "40d12/4000000000/4000000000/78", "Callers wait for twelve"},
		{0, "4d0/1000000/1000000/79", "A slice that ends sooner does not change until when others may be spent"},
		{time.Hour, "30x1 east", "In another time zone the next day has begun, but slices are out of the one before. Until these have ended its permits count, and so this is denied until then"},
		{0, "1x1 east", "A call that is allowed makes the state last until the end of that zone's day"},
		{0, fmt.Sprintf("2g%d/0", int64(midnight)), "By the first rule its day goes on, and the state lasts as long: what was not spent comes back to it"},
		{0, "8d0/20000000000/20000000000/80", "A slice ends with its day at the latest"},
		{(midnight - start - 3_602_000_000) * time.Microsecond, "1x1", "Midnight. The slices have ended, and the state was written before: the first rule begins the count again"},
	})
	return g
}

// A slicedCounter is a fixed window whose end is the TTL of its key.
type slicedCounter struct {
	m     *model.FixedWindow
	limit int
	key   kept
	ends  int64 // of the last slice, milliseconds
}

func (w *slicedCounter) keys(*Case) []*kept { return []*kept{&w.key} }

func (w *slicedCounter) operate(now int64, c *Case) {
	used, end, ok := w.m.State()
	if !ok {
		end = now/1000 + 60_000
	}
	left := end - now/1000
	switch n, kind, place, _ := parse(c.Operation); kind {
	case 'd':
		l := leaseOf(c.Operation)
		count, long := l.size(int64(w.limit-used)), min(l.long, (left-1)*1000)
		w.m.Take(now, int(count), false)
		w.ends = max(w.ends, now/1000+(long+999)/1000+1) // a millisecond more, as TTLs are whole ones
		c.Reply = []int64{long, count, int64(w.limit - used), left, end, 0}
	case 'g':
		w.m.GiveBack(now, n, place)
		c.Reply = []int64{int64(n)}
	}
	used, _, _ = w.m.State()
	w.key.write(now, fmt.Sprintf("%d000064~%d", used, end-w.ends), left)
}

func slicesOfCounters() Group {
	const limit = 20
	g := Group{
		Algorithm: "fixedwindow", About: withSlices, Script: "fixedwindow", Key: "ratelimit:default:fixedwindow{k}",
		Rule: map[string]int64{"limit": limit, "window": 60_000_000}, Args: texts(20_000_064, 60_000),
	}
	g.Cases = narrate(&slicedCounter{m: model.NewFixedWindow(limit, time.Minute), limit: limit}, []step{
		{0, "10d0/4000000/4000000/77", "Of a counter the state says what is left of the TTL when the last slice ends, a millisecond less"},
		{2 * time.Second, fmt.Sprintf("3g%d/0", int64(start)/1000+60_000), "What was not spent comes back"},
	})
	return g
}

// A slicedLog is a sliding window in a list with slices, which end when their sub-window does, at which their permits are dated.
type slicedLog struct {
	*log
	limit int
	key   kept
	mark  string // of the rule
}

func (l *slicedLog) keys(*Case) []*kept { return []*kept{&l.key} }

func (l *slicedLog) operate(now int64, c *Case) {
	_, old := l.key.at(now)
	words := l.words(now)
	n, kind, place, which := parse(c.Operation)
	switch kind {
	case 'd':
		of, slot := leaseOf(c.Operation), l.endOfSlot(now)
		count, long := of.size(int64(l.limit)-words[2]), min(of.long, slot-now)
		l.m.Take(now, int(count), false)
		words[0] = slot - now
		id := of.id
		if l.mark != "" { // that of the first slice
			id, _ = strconv.ParseInt(l.mark[strings.IndexByte(l.mark, '/')+1:], 10, 64)
		}
		l.mark = fmt.Sprintf("~%d/%d", slot, id)
		c.Reply = append(append([]int64{long, count}, words...), slot, id)
	case 'g':
		if c.Reply = []int64{0}; !strings.HasSuffix(l.mark, fmt.Sprintf("/%d", which)) {
			return
		}
		before := l.used(now)
		l.m.GiveBack(now, n, place)
		c.Reply[0] = before - l.used(now)
	}
	state, ttl := l.write(now, old, kind == 'g')
	list := state.([]string)
	list[0] += l.mark
	l.key.write(now, list, ttl)
}

func slicesOfLogs() Group {
	const limit, slot = 20, 6_000_000
	g := Group{
		Algorithm: "slidingwindow-list", About: withSlices, Script: "slidingwindow_list", Key: "ratelimit:default:slidingwindow-list{k}",
		Rule: map[string]int64{"limit": limit, "window": 60_000_000, "sub_windows": 10},
		Args: append([]string{"60000000/6000000"}, texts(slot, limit, 60_000_000)...),
	}
	rules := []model.Rule{{Limit: limit, Window: time.Minute}}
	of := &slicedLog{log: &log{m: model.NewSlidingLog(rules, slot*time.Microsecond), rules: rules, slot: slot}, limit: limit}
	const dated = start - start%slot + slot - 1
	g.Cases = narrate(of, []step{
		{time.Second, "10d0/9000000/9000000/77", "A quarter of the permits. The slice ends when its sub-window does, and the rule says when, and the id of those of which permits come back"},
		{time.Second, fmt.Sprintf("2g%d/78", int64(dated)), "Another id: nothing comes back"},
		{0, fmt.Sprintf("2g%d/77", int64(dated)), "What was not spent comes back to its entry"},
		{6 * time.Second, "4d4/9000000/9000000/79", "The id stays that of the first slice"},
	})
	return g
}

// leasedSlices are limiters that Leased asks for slices.
func leasedSlices() []Group {
	return []Group{slicesOfBuckets(), slicesOfWindows(), slicesOfCalendars(), slicesOfCounters(), slicesOfLogs()}
}
