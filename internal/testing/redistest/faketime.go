package redistest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// clockTolerance is how much TIME may differ from this process's clock plus the offset. Both read the same clock, but
// libfaketime keeps the offset as a floating-point number.
const clockTolerance = 5 * time.Millisecond

// preloadEnv is the variable that names libraries for a server program that is a shell script. The script passes them to
// the server's loader. LD_PRELOAD would load them into the shell as well.
const preloadEnv = "REDISTEST_PRELOAD"

// fakeClock is the file from which libfaketime takes a server's clock: an offset, an instant at which the clock stands
// still, or a speed.
type fakeClock struct {
	file   string
	clock  sync.Mutex // guards offset and the writing of the file
	offset time.Duration
}

// faketimeLibrary returns the libfaketime for the server program, or "". The variant for programs with threads comes
// first.
func faketimeLibrary() string {
	if own := ownFaketimeLibrary(); own != "" {
		return own
	}
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

// ownFaketimeLibrary returns the libfaketime that lies beside the server program, or "". Such a program is a script that
// starts a server by a C library of its own, in which the system's libfaketime would crash.
func ownFaketimeLibrary() string {
	program, err := exec.LookPath(serverProgram())
	if err != nil {
		return ""
	}
	library := filepath.Join(filepath.Dir(program), "libfaketime.so.1")
	if _, err := os.Stat(library); err != nil {
		return ""
	}
	return library
}

// environment makes a server take its clock from the file, at every call. The monotonic clock stays real, because Redis
// times its event loop with it.
//
// Debian's servers are linked to jemalloc, which reads the clock while it is initialised. If libfaketime allocated
// memory while it is initialised, each would wait for the other forever. See preload.
func (c *fakeClock) environment() []string {
	return append(preload(),
		"FAKETIME_TIMESTAMP_FILE="+c.file,
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
		"DONT_FAKE_MONOTONIC=1", // the name in older versions
		"TZ=UTC",                // of an instant in the file
	)
}

// preload loads libfaketime into the server.
func preload() []string {
	own := ownFaketimeLibrary()
	if own == "" {
		// libc is preloaded as well, so that libfaketime finds its malloc before that of jemalloc.
		return []string{"LD_PRELOAD=" + faketimeLibrary() + " libc.so.6"}
	}
	// From Redis 8 on, servers also call functions that only jemalloc has, and would crash on memory from libc's malloc.
	// Recent versions of libfaketime can avoid allocating: looking up a symbol that libc does not have allocates, and so
	// does memory that is shared with other processes.
	return []string{
		preloadEnv + "=" + own,
		"FAKETIME_IGNORE_SYMBOLS=__ftime,clock_gettime64,__clock_gettime64,timer_gettime@GLIBC_2.2,timer_settime@GLIBC_2.2",
		"FAKETIME_DISABLE_SHM=1",
	}
}

// write replaces the file in one step: libfaketime would read a half-written file as no offset at all.
func (c *fakeClock) write(text string) error {
	temp := c.file + ".new"
	if err := os.WriteFile(temp, []byte(text+"\n"), 0o600); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	if err := os.Rename(temp, c.file); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	return nil
}

// run lets the clock run, with its offset.
func (c *fakeClock) run() error { return c.write(fmt.Sprintf("%+.6f", c.offset.Seconds())) }

// hold stops the clock in the middle of a microsecond: libfaketime reads the fraction as a floating-point number.
func (c *fakeClock) hold(at time.Time) error {
	c.clock.Lock()
	defer c.clock.Unlock()
	at = at.UTC().Truncate(time.Microsecond).Add(time.Microsecond / 2)
	return c.write(at.Format("2006-01-02 15:04:05.000000000"))
}

// rush lets the clock run times as fast, with its offset.
func (c *fakeClock) rush(times int) error {
	c.clock.Lock()
	defer c.clock.Unlock()
	return c.write(fmt.Sprintf("%+.6f x%d", c.offset.Seconds(), times))
}

// step moves the clock and waits until TIME says so.
func (c *fakeClock) step(d time.Duration, opt *redis.Options) error {
	c.clock.Lock()
	defer c.clock.Unlock()
	c.offset += d
	if err := c.run(); err != nil {
		return err
	}
	client := redis.NewClient(opt)
	defer client.Close()
	return poll("step the clock", func(ctx context.Context) error {
		asked := time.Now()
		got, err := client.Time(ctx).Result()
		if err != nil {
			return err
		}
		earliest := asked.Add(c.offset - clockTolerance)
		latest := time.Now().Add(c.offset + clockTolerance)
		if got.Before(earliest) || got.After(latest) {
			return fmt.Errorf("TIME is %v, not between %v and %v", got, earliest, latest)
		}
		return nil
	})
}

// removeSharedClock removes the shared memory that libfaketime leaves behind when its program is killed. Because of that
// memory, a later program with the same process id would not start.
func removeSharedClock(pid int) {
	for _, name := range []string{"faketime_shm_%d", "sem.faketime_sem_%d"} {
		_ = os.Remove(filepath.Join("/dev/shm", fmt.Sprintf(name, pid)))
	}
}
