package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A report is Markdown: prose and tables.
type report struct{ strings.Builder }

func (r *report) paragraph(format string, args ...any) {
	fmt.Fprintf(r, format+"\n\n", args...)
}

func (r *report) table(t table) { r.paragraph("%s", strings.TrimSpace(t.markdown())) }

// finish prints the report and writes it to a file of that name.
func (r *report) finish(o options, name string) error {
	progress("")
	text := strings.TrimRight(r.String(), "\n") + "\n"
	fmt.Print(text)
	return save(o, name, text)
}

// save writes a file below the output directory.
func save(o options, name, text string) error {
	path := filepath.Join(o.out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// saveSection prints a section, and puts it into results.md in place of the former one.
func saveSection(o options, heading, section string) error {
	progress("")
	fmt.Print(section)
	former, err := os.ReadFile(filepath.Join(o.out, "results.md"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return save(o, "results.md", replaceSection(string(former), heading, section))
}

// sectionOf is the section of text that begins with the heading, or "".
func sectionOf(text, heading string) string {
	begin := strings.Index(text, heading+"\n")
	if begin < 0 {
		return ""
	}
	section := text[begin:]
	if next := strings.Index(section[len(heading):], "\n## "); next >= 0 {
		section = section[:len(heading)+next]
	}
	return strings.TrimSpace(section)
}

// replaceSection replaces the section of text that begins with the heading, or adds it
// at the end.
func replaceSection(text, heading, section string) string {
	begin := strings.Index(text, heading+"\n")
	if begin < 0 {
		return strings.TrimLeft(strings.TrimRight(text, "\n")+"\n\n"+strings.TrimSpace(section)+"\n", "\n")
	}
	rest := ""
	if next := strings.Index(text[begin+len(heading):], "\n## "); next >= 0 {
		rest = "\n" + text[begin+len(heading)+next+1:]
	}
	return text[:begin] + strings.TrimSpace(section) + "\n" + rest
}

// setting says what the figures depend on.
func setting(ctx context.Context, c *redis.Client, o options) (string, error) {
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s and the callers on one machine, %d cores, %s. Medians of %d interleaved rounds of %v. %s.",
		product(info), runtime.NumCPU(), runtime.Version(), o.rounds, o.duration, versions()), nil
}

// product is the server's name and version. Valkey also gives the version of the Redis that it stands in for.
func product(info string) string {
	name := "Redis ?"
	for line := range strings.Lines(info) {
		field, version, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch field {
		case "valkey_version":
			return "Valkey " + version
		case "redis_version":
			name = "Redis " + version
		}
	}
	return name
}

// versions are those of the peers' modules.
func versions() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "Versions unknown"
	}
	peer := regexp.MustCompile(`^github\.com/((?:redis/go-redis|go-redis/redis_rate|ulule/limiter|throttled/throttled|zeromicro/go-zero|` +
		`redis/rueidis|redis/rueidis/rueidislimiter|valkey-io/valkey-go|valkey-io/valkey-go/valkeylimiter))(?:/v\d+)?$`)
	var list []string
	for _, module := range build.Deps {
		if m := peer.FindStringSubmatch(module.Path); m != nil {
			list = append(list, m[1]+" "+module.Version)
		}
	}
	return strings.Join(list, ", ")
}
