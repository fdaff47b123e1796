package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/page/pagetest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

type step = chromedp.Action[chromedp.Void]

// browser is one headless Chromium for all tests, nil until one needs it.
var browser context.Context

func TestMain(m *testing.M) {
	code := m.Run()
	if browser != nil {
		_ = chromedp.Cancel(browser)
	}
	os.Exit(code)
}

// A tab is one of the browser.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func openTab(t *testing.T) tab {
	t.Helper()
	if testing.Short() {
		t.Skip("no browser is started with -short")
	}
	redistest.Require(t, "chromium")
	if browser == nil {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.DisableGPU,
			chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-dev-shm-usage", true))
		allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
		browser, _ = chromedp.NewContext(allocator)
		require.NoError(t, chromedp.Do(browser))
	}
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	b := tab{t, ctx}
	b.do(chromedp.EmulateViewport(1200, 900))
	return b
}

func (b tab) do(steps ...step) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// value is that of an expression.
func value[T any](b tab, js string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](js))
	require.NoError(b.t, err, js)
	return v
}

// until waits until an expression is true.
func until(js string) step {
	return chromedp.Poll[chromedp.Void]("Boolean(" + js + ")")
}

// screen makes the page so many pixels wide, and light or dark, and waits until it is drawn so.
func screen(width, height int64, scheme string) step {
	return chromedp.Steps(chromedp.EmulateViewport(width, height), func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	}, chromedp.Evaluate[chromedp.Void](`new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))`, chromedp.EvalAwaitPromise))
}

// audit says what is wrong with the page for those who do not see it well.
func (b tab) audit() {
	b.t.Helper()
	require.Empty(b.t, value[[]string](b, pagetest.Audit))
}

// screenshot keeps a picture of the whole page in the folder that PAGE_SCREENSHOTS names.
func (b tab) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("PAGE_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}
