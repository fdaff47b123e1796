package report

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
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

// cutOff is whether bars of the first chart reach its upper edge.
const cutOff = `(() => {
	const canvas = document.querySelector(".chart canvas"), over = document.querySelector(".u-over");
	return canvas.getContext("2d").getImageData(over.offsetLeft, over.offsetTop, over.offsetWidth, 2).data.some((v, i) => i % 4 === 3 && v);
})()`

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

	// What is under the pointer in one chart is named in all; a part of one is shown of all, until Escape.
	legends := `[...document.querySelectorAll(".chart")].map(c => c.querySelector(".u-legend td").textContent)`
	box := value[[]float64](b, `(() => { const r = document.querySelectorAll(".u-over")[0].getBoundingClientRect(); return [r.left, r.top, r.width, r.height] })()`)
	x, y := func(part float64) float64 { return box[0] + box[2]*part }, box[1]+box[3]/2
	b.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.5), y), until(legends+`.every(text => text.startsWith("2026-03-02 11:5"))`))
	b.do(
		chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, x(.5), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.75), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, x(.75), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.1), y), until(legends+`.every(text => text.startsWith("2026-03-02 12:"))`),
		chromedp.KeyEvent(kb.Escape), chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.5)+1, y),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.5), y), until(legends+`.every(text => text.startsWith("2026-03-02 11:5"))`),
	)
}

// TestBarsAreAsWideAsThePageAllows: of four days in parts of five minutes, each bar is as many as make three pixels, and of a
// part that is enlarged fewer. Nothing is lost.
func TestBarsAreAsWideAsThePageAllows(t *testing.T) {
	d := sample(100_000, 288, 2)
	for len(d.Buckets) < 4*288 {
		d.Buckets = append(d.Buckets, Bucket{Begin: d.First.Add(time.Duration(len(d.Buckets)) * 5 * time.Minute), Denied: []int{0, 0}})
	}
	d.Last = d.First.Add(4*24*time.Hour - time.Second)
	b := openReport(t, d)
	bar := `document.getElementById("bar").textContent`
	for _, look := range []struct {
		width int64
		bar   string
	}{{1200, "one hour"}, {400, "one hour"}, {320, "6 hours"}} {
		b.do(screen(look.width, 900, "light"), until(bar+` === "`+look.bar+`" && !`+cutOff)) // counts are on the scale of these bars
		b.screenshot("report-four-days-" + fmt.Sprint(look.width))
	}
	b.do(screen(1200, 900, "light"), until(bar+` === "one hour"`))
	box := value[[]float64](b, `(() => { const r = document.querySelectorAll(".u-over")[0].getBoundingClientRect(); return [r.left, r.top, r.width, r.height] })()`)
	x, y := func(part float64) float64 { return box[0] + box[2]*part }, box[1]+box[3]/2
	b.do(
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.1), y),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMousePressed, x(.1), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(.2), y, chromedp.ButtonLeft),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseReleased, x(.2), y, chromedp.ButtonLeft),
		until(bar+` === "5 minutes"`),
		chromedp.KeyEvent(kb.Escape), until(bar+` === "one hour"`),
		chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x(0)+1, y),
	)
	allowed := 0 // in the first hour, under the second limit
	for _, bucket := range d.Buckets[:12] {
		allowed += bucket.Allowed(1)
	}
	b.do(until(`[...document.querySelectorAll(".chart")[1].querySelectorAll(".u-legend td")].some(e => e.textContent === "` + number(allowed) + `")`))
}

// TestRowsAreLowOnAPhone: no column is so narrow that its words stand below each other.
func TestRowsAreLowOnAPhone(t *testing.T) {
	b := openReport(t, sample(100_000, 288, 3))
	b.do(screen(400, 800, "light"))
	b.audit()
	b.screenshot("report-phone")
	require.Less(t, value[float64](b, `Math.max(...[...document.querySelectorAll("#limits tbody tr")].map(e => e.getBoundingClientRect().height))`), 100.0)
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
