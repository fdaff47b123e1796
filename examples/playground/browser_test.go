package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redistest"
)

type step = chromedp.Action[chromedp.Void]

// A tab is that of a headless Chromium of its own.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func openTab(t *testing.T) tab {
	redistest.Require(t, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx); cancel() })
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

// screen makes the page so many pixels wide, and light or dark.
func screen(width, height int64, scheme string) step {
	return chromedp.Steps(chromedp.EmulateViewport(width, height), func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	})
}

// screenshot keeps a picture of the whole page in the folder that PAGE_SCREENSHOTS names.
func (b tab) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("PAGE_SCREENSHOTS")
	if dir == "" {
		return
	}
	time.Sleep(500 * time.Millisecond) // the page is drawn again after a change of the screen
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}
