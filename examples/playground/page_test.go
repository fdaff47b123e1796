package main

import (
	"context"
	"net"
	"net/http/httptest"
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

func TestPageShowsAnOutageAndItsPolicy(t *testing.T) {
	w, b := openPage(t)
	health := func(words string) step { return until(text("health") + `.startsWith("` + words + `")`) }
	b.do(
		health("Redis answers. The breaker is closed"),
		chromedp.Click("#down"), chromedp.Click("#burst"),
		health("Redis is down. The breaker is open"),
		until(text("states")+`.includes("cannot be read")`),
		until(count("secondary")+` >= 5`),
	)
	b.audit()
	b.screenshot("playground-outage")
	b.do(
		chromedp.Click("#down"),
		health("Redis answers. The breaker is closed"),
		chromedp.SetValue(`[name=policy]`, "error"),
		chromedp.Poll[chromedp.Void](`document.querySelector("[name=policy]").dispatchEvent(new Event("input", {bubbles: true}))`),
		health("Redis answers. No policy"),
		chromedp.Click("#down"), chromedp.Click("#burst"),
		until(count("failed")+` >= 20`),
	)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.True(t, w.settings.Down)
	require.Equal(t, "error", w.settings.Policy)
}

// TestPageWorksByKeyboard: the Tab key reaches every control, and keys use it.
func TestPageWorksByKeyboard(t *testing.T) {
	w, b := openPage(t)
	var order []string
	for range 12 {
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
		case "wait", "burst", "down":
			b.do(chromedp.KeyEvent(" "))
		}
	}
	require.Equal(t, []string{"algorithm", "limit", "window", "plan", "callers", "rate", "shared", "wait", "burst", "reset", "policy", "down"}, order)
	b.screenshot("playground-focus")
	b.do(until(text("health") + `.startsWith("Redis is down")`))
	w.mu.Lock()
	defer w.mu.Unlock()
	want := usual
	want.Algorithm, want.Limit, want.Callers, want.Wait, want.Down = "fixed-window", 11, 3, true, true
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
