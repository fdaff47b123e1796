package main

import (
	"context"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// openPage serves a playground with its own Redis, and opens its page.
func openPage(t *testing.T) (*world, tab) {
	b := openTab(t)
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	w, err := newWorld(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
	}, "a Redis of the test", "test", time.Minute)
	require.NoError(t, err)
	t.Cleanup(w.close)
	running, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go w.run(running)
	site := httptest.NewServer(handler(w))
	t.Cleanup(site.CloseClientConnections)
	b.do(chromedp.Navigate(site.URL), until(`document.getElementById("states").childElementCount > 0`))
	return w, b
}

// count is a count that the page shows.
func count(id string) string {
	return `Number(document.getElementById("` + id + `").textContent.replaceAll(",", ""))`
}

func text(id string) string { return `document.getElementById("` + id + `").textContent` }

func TestPageShowsWhatTheLimiterDoes(t *testing.T) {
	_, b := openPage(t)
	b.do(chromedp.Click("#burst"), until(count("allowed")+` >= 10 && `+count("denied")+` >= 10`))
	states := value[string](b, text("states"))
	require.Contains(t, states, "of 10 permits")
	require.Contains(t, states, "test:demo:tokenbucket{user:1} (string): ")
	require.Regexp(t, `^(allowed, \d+ of 10 left|denied, retry after \d+ ms)$`, value[string](b, `document.querySelector("#lines li").lastChild.textContent`))
	for _, look := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"light", 1200, 900, "light"}, {"dark", 1200, 900, "dark"}, {"narrow", 360, 800, "dark"}, {"narrow-light", 320, 700, "light"}} {
		b.do(screen(look.width, look.height, look.scheme))
		b.audit()
		b.screenshot("playground-" + look.name)
	}
}

// TestPageShowsAGreedyCaller: under one token bucket, and in fair shares.
func TestPageShowsAGreedyCaller(t *testing.T) {
	w, b := openPage(t)
	b.do(chromedp.Click("#neighbours"), until(`document.querySelectorAll("#callers tr").length === 3`))
	require.Equal(t, "caller 1, greedy", value[string](b, `document.querySelector("#callers th").textContent`))
	b.do(
		chromedp.SetValue(`[name=algorithm]`, fair),
		chromedp.Poll[chromedp.Void](`document.querySelector("[name=algorithm]").dispatchEvent(new Event("input", {bubbles: true}))`),
		until(`form.shared.disabled`),
		chromedp.Click("#burst"), // three times what there is, with the greedy one's
		until(`[...document.querySelectorAll("#lines li")].some(e => e.textContent.includes("kept for other callers"))`),
		until(text("states")+`.includes("demo:fairtokenbucket:{all} (string)")`),
	)
	for _, look := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"shares", 1200, 900, "light"}, {"shares-narrow", 400, 800, "dark"}} {
		b.do(screen(look.width, look.height, look.scheme))
		b.audit()
		b.screenshot("playground-" + look.name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, settings{Algorithm: fair, Limit: 60, Window: 10, Plan: "basic", Callers: 3, Rate: 2, Greedy: true, Shared: true, Policy: "local"}, w.settings)
}

// TestPageShowsAPause, and that it is lifted.
func TestPageShowsAPause(t *testing.T) {
	_, b := openPage(t)
	b.do(
		chromedp.Click("#pause"),
		until(text("states")+`.includes("Paused for another ")`), until(text("states")+`.includes("test:demo:pause{user:1}")`),
		chromedp.Click("#burst"), until(count("denied")+` >= 20`),
	)
	b.audit()
	b.do(screen(400, 800, "light"))
	b.audit()
	b.screenshot("playground-pause")
	b.do(screen(1200, 900, "light"), chromedp.Click("#lift"), until(`!`+text("states")+`.includes("Paused for another ")`))
	require.Equal(t, "", value[string](b, text("problem")))
}

func TestPageShowsAnOutageAndItsPolicy(t *testing.T) {
	w, b := openPage(t)
	health := func(words string) step { return until(text("health") + `.startsWith("` + words + `")`) }
	b.do(
		health("Redis answers. Every request asks it."),
		chromedp.Click("#down"), chromedp.Click("#burst"),
		health("Redis is down. Requests do not ask it any more"),
		until(text("states")+`.includes("cannot be read")`),
		until(count("secondary")+` >= 5`),
	)
	b.do(until(painted("--span") + ` > 50`)) // the chart has the outage
	b.audit()
	b.screenshot("playground-outage")
	b.do(
		chromedp.Click("#down"),
		health("Redis answers. Every request asks it."),
		chromedp.SetValue(`[name=policy]`, "error"),
		chromedp.Poll[chromedp.Void](`document.querySelector("[name=policy]").dispatchEvent(new Event("input", {bubbles: true}))`),
		health("Redis answers. Every request asks it, and fails if"),
		chromedp.Click("#down"), chromedp.Click("#burst"),
		until(count("failed")+` >= 20`),
	)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.True(t, w.settings.Down)
	require.Equal(t, "error", w.settings.Policy)
}

// painted is how many pixels of the chart have the colour of a variable of the style sheet.
func painted(color string) string {
	return `(() => {
		const canvas = document.querySelector(".chart canvas"), probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
		probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("` + color + `").trim();
		probe.fillRect(0, 0, 1, 1);
		const want = probe.getImageData(0, 0, 1, 1).data, all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
		let n = 0;
		for (let i = 0; i < all.length; i += 4) n += all[i] === want[0] && all[i + 1] === want[1] && all[i + 2] === want[2] && all[i + 3] === 255;
		return n;
	})()`
}

// TestControlsAreUsedWithTheChartInView, on a phone: whichever one scrolls to, also by the keyboard.
func TestControlsAreUsedWithTheChartInView(t *testing.T) {
	_, b := openPage(t)
	b.do(screen(400, 800, "light"), until(count("allowed")+` > 0`))
	for _, control := range []string{"[name=algorithm]", "[name=limit]", "[name=rate]", "#burst", "#neighbours", "#reset", "#pause", "[name=policy]", "#down"} {
		value[bool](b, `(document.activeElement.blur(), scrollTo(0, 0), document.querySelector("`+control+`").focus(), true)`)
		b.do(screen(400, 800, "light")) // it is drawn so
		in := value[map[string]float64](b, `(() => {
			const chart = document.querySelector(".chart canvas").getBoundingClientRect(), control = document.querySelector("`+control+`").getBoundingClientRect();
			return {chartTop: chart.top, chartBottom: document.querySelector(".now").getBoundingClientRect().bottom, top: control.top, bottom: control.bottom};
		})()`)
		require.GreaterOrEqual(t, in["chartTop"], 0.0, control)
		require.GreaterOrEqual(t, in["top"], in["chartBottom"], control)
		require.LessOrEqual(t, in["bottom"], 800.0, control)
	}
	b.audit()
}

// TestPageSaysWhichValueIsImpossible: and goes on with the last possible one.
func TestPageSaysWhichValueIsImpossible(t *testing.T) {
	w, b := openPage(t)
	change := func(to string) step {
		return chromedp.Poll[chromedp.Void](`(() => {
			document.querySelector("[name=limit]").value = "` + to + `";
			return document.querySelector("[name=limit]").dispatchEvent(new Event("change", {bubbles: true}));
		})()`)
	}
	for value, says := range map[string]string{"0": "0", "1001": "1001", "1.5": "1.5", "": "empty"} {
		b.do(change(value), until(text("problem")+` === "“Requests allowed” is `+says+`; it can be a whole number from 1 to 1000."`))
	}
	b.audit()
	b.screenshot("playground-impossible")
	b.do(change("7"), until(text("problem")+` === ""`))
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(t, 7, w.settings.Limit)
}

// TestPageUsesWordsOfEverybody: those of programmers are explained or left out, and the legend has no name without a value.
func TestPageUsesWordsOfEverybody(t *testing.T) {
	_, b := openPage(t)
	b.do(chromedp.Click("#burst"), until(count("denied")+` > 0`))
	page := value[string](b, `document.body.innerText`)
	for _, word := range []string{"breaker", "no decision", "policy", "secondary"} {
		require.NotContains(t, strings.ToLower(page), word)
	}
	require.Contains(t, page, "A permit is the right to one request.")
	require.ElementsMatch(t, []string{"allowed", "denied", "failed"}, value[[]string](b, `[...document.querySelectorAll(".u-legend .u-series")]
		.filter(e => e.checkVisibility({visibilityProperty: true})).map(e => e.textContent.trim())`))
}

// TestPageWorksByKeyboard: the Tab key reaches every control, and keys use it.
func TestPageWorksByKeyboard(t *testing.T) {
	w, b := openPage(t)
	var order []string
	for range 16 {
		b.do(chromedp.KeyEvent(kb.Tab))
		at := value[string](b, `document.activeElement.name || document.activeElement.id || document.activeElement.tagName`)
		order = append(order, at)
		switch at {
		case "algorithm":
			b.do(chromedp.KeyEvent("f")) // fixed window
		case "limit":
			b.do(chromedp.KeyEvent(kb.ArrowUp))
		case "callers":
			b.do(chromedp.KeyEvent(kb.ArrowRight))
		case "greedy", "wait", "burst", "down":
			b.do(chromedp.KeyEvent(" "))
		}
	}
	require.Equal(t, []string{"algorithm", "limit", "window", "plan", "callers", "rate", "greedy", "shared", "wait", "burst", "neighbours", "reset", "pause", "lift", "policy", "down"}, order)
	b.screenshot("playground-focus")
	b.do(until(text("health") + `.startsWith("Redis is down")`))
	w.mu.Lock()
	defer w.mu.Unlock()
	want := usual
	want.Algorithm, want.Limit, want.Callers, want.Greedy, want.Wait, want.Down = "fixed-window", 11, 3, true, true, true
	require.Equal(t, want, w.settings)
}

// TestPageSaysWhatIsWrong: what the server refuses is shown.
func TestPageSaysWhatIsWrong(t *testing.T) {
	_, b := openPage(t)
	b.do(
		chromedp.Poll[chromedp.Void](`send("/burst", {n: 1000}) || true`),
		until(text("problem")),
	)
	require.Equal(t, "a burst of 1000; it can be 1 to 100", value[string](b, text("problem")))
}
