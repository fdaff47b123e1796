package report

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// openReport writes a report to a file and opens the file, as a person does.
func openReport(t *testing.T, d Data) tab {
	t.Helper()
	b := openTab(t)
	file := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(file, []byte(written(t, d)), 0o600))
	b.do(chromedp.Navigate((&url.URL{Scheme: "file", Path: file}).String()), until(`document.body.dataset.drawn`))
	return b
}

// painted is how many pixels of a chart have the colour of a variable of the style sheet.
func painted(chart int, color string) string {
	return `(() => {
		const canvas = document.querySelectorAll(".chart canvas")[` + string(rune('0'+chart)) + `], probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
		probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("` + color + `").trim();
		probe.fillRect(0, 0, 1, 1);
		const want = probe.getImageData(0, 0, 1, 1).data, all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
		let n = 0;
		for (let i = 0; i < all.length; i += 4) n += all[i] === want[0] && all[i + 1] === want[1] && all[i + 2] === want[2] && all[i + 3] === 255;
		return n;
	})()`
}

func TestReportIsDrawn(t *testing.T) {
	b := openReport(t, sample(100_000, 288, 1))
	for _, look := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"light", 1200, 900, "light"}, {"dark", 1200, 900, "dark"}, {"narrow", 360, 800, "dark"}, {"narrow-light", 320, 700, "light"}} {
		b.do(screen(look.width, look.height, look.scheme), until(painted(0, "--allow")+` > 500 && `+painted(0, "--deny")+` > 20`))
		b.audit()
		b.screenshot("report-" + look.name)
	}
}

// TestReportOfManyRequestsIsDrawnAtOnce logs how long it takes: within a second, on two cores that
// do nothing else.
func TestReportOfManyRequestsIsDrawnAtOnce(t *testing.T) {
	b := openReport(t, sample(100_000, MaxBuckets, MaxLimits))
	b.do(until(painted(0, "--allow") + ` > 500`))
	t.Logf("100,000 requests, %d buckets, %d limits: drawn in %d ms", MaxBuckets, MaxLimits,
		value[int](b, `Math.round(performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd)`))
	require.Less(t, value[int](b, `document.getElementsByTagName("*").length`), 4000, "the table of buckets is made when it is opened")
}

func TestLimitsAreSideBySide(t *testing.T) {
	b := openReport(t, sample(100_000, 288, 3))
	require.Equal(t, 3, value[int](b, `document.querySelectorAll(".chart canvas").length`))
	b.do(until(painted(2, "--deny") + ` > 100`))
	require.Greater(t, value[int](b, painted(0, "--deny")), value[int](b, painted(2, "--deny")), "on one scale, the lowest limit denies most")
	b.audit()
	b.screenshot("report-side-by-side")
}

func TestOneOfManyLimitsIsPickedByKeyboard(t *testing.T) {
	d := sample(100_000, 288, 12)
	d.Sweep = true
	b := openReport(t, d)
	require.Equal(t, 1, value[int](b, `document.querySelectorAll(".chart canvas").length`))
	b.do(until(painted(0, "--deny") + ` > 100`))
	before := value[int](b, painted(0, "--deny"))
	for value[string](b, `document.activeElement.id`) != "which" {
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	b.do(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowDown), until(painted(0, "--deny")+` < `+value[string](b, `String(`+painted(0, "--deny")+`)`)))
	require.Less(t, value[int](b, painted(0, "--deny")), before)
	b.audit()
	b.screenshot("report-sweep")
}

// TestTableHasWhatTheChartShows: for those who do not see the chart, and by keyboard.
func TestTableHasWhatTheChartShows(t *testing.T) {
	d := sample(100_000, 96, 1)
	b := openReport(t, d)
	for value[string](b, `document.activeElement.tagName`) != "SUMMARY" {
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	b.do(chromedp.KeyEvent(" "), until(`document.querySelectorAll("#time-table tbody tr").length === 96`))
	require.Equal(t, []string{"2026-03-02 00:15:00", number(d.Buckets[1].Requests), number(d.Buckets[1].Denied[0])},
		value[[]string](b, `[...document.querySelectorAll("#time-table tbody tr")[1].children].map(e => e.textContent)`))
	b.audit()
}

// TestHostileNamesAreShown: they run nothing, and a person reads them as they are.
func TestHostileNamesAreShown(t *testing.T) {
	b := openReport(t, withHostileNames(sample(1000, 24, 7)))
	require.Equal(t, hostile[0], value[string](b, `document.title`))
	require.Equal(t, hostile[0], value[string](b, `document.querySelector("h1").textContent`))
	require.Equal(t, hostile[1], value[string](b, `document.querySelectorAll("#keys tbody th")[1].textContent`))
	require.Equal(t, hostile[4]+"4", value[string](b, `document.getElementById("which").options[4].text`))
	require.Equal(t, 0, value[int](b, `document.querySelectorAll("img, b, iframe").length`))
	b.do(screen(360, 800, "light"))
	b.audit()
	b.screenshot("report-hostile")
}
