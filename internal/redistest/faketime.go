package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// clockTolerance is by how much TIME may differ from this process's clock plus the offset: both read the same clock,
// and libfaketime keeps the offset as a floating-point number.
const clockTolerance = 5 * time.Millisecond

// fakeClock is the file from which libfaketime takes the offset of a server's clock.
type fakeClock struct {
	file   string
	clock  sync.Mutex // guards offset and the writing of the file
	offset time.Duration
}

// faketimeLibrary returns where libfaketime is installed, or "". The variant for programs with threads comes first.
func faketimeLibrary() string {
	for _, name := range []string{"libfaketimeMT.so.1", "libfaketime.so.1"} {
		for _, dir := range []string{"/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime",
			"/usr/local/lib/faketime"} {
			if found, _ := filepath.Glob(filepath.Join(dir, name)); len(found) > 0 {
				return found[0]
			}
		}
	}
	return ""
}

// environment makes a server read its clock through the file, at every call. The monotonic clock stays real, for
// Redis times its own event loop with it.
//
// libc is preloaded as well, so that its malloc is found before that of jemalloc, which Debian's Redis is linked to:
// jemalloc reads the clock while it sets itself up, libfaketime allocates while it sets itself up, and each waits for
// the other for ever.
func (c *fakeClock) environment() []string {
	return []string{
		"LD_PRELOAD=" + faketimeLibrary() + " libc.so.6",
		"FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
		"DONT_FAKE_MONOTONIC=1", // the name in older versions
	}
}

// write replaces the file in one step: a half-written one would be read as no offset at all.
func (c *fakeClock) write() error {
	temp := c.file + ".new"
	if err := os.WriteFile(temp, fmt.Appendf(nil, "%+.6f\n", c.offset.Seconds()), 0o600); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	if err := os.Rename(temp, c.file); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	return nil
}

// step moves the clock and waits until TIME says so.
func (c *fakeClock) step(d time.Duration, opt *redis.Options) error {
	c.clock.Lock()
	defer c.clock.Unlock()
	c.offset += d
	if err := c.write(); err != nil {
		return err
	}
	client := redis.NewClient(opt)
	defer client.Close()
	return poll("step the clock", func(ctx context.Context) error {
		before := time.Now()
		got, err := client.Time(ctx).Result()
		if err != nil {
			return err
		}
		earliest := before.Add(c.offset - clockTolerance)
		latest := time.Now().Add(c.offset + clockTolerance)
		if got.Before(earliest) || got.After(latest) {
			return fmt.Errorf("TIME is %v, not between %v and %v", got, earliest, latest)
		}
		return nil
	})
}

// removeSharedClock removes the shared memory that libfaketime leaves behind when its program is killed. A later
// program with the same process id would refuse to start over it.
func removeSharedClock(pid int) {
	for _, name := range []string{"faketime_shm_%d", "sem.faketime_sem_%d"} {
		_ = os.Remove(filepath.Join("/dev/shm", fmt.Sprintf(name, pid)))
	}
}
