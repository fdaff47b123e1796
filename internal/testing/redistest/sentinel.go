package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	// MasterName is what the Sentinels call the master.
	MasterName    = "redistest"
	sentinelCount = 3
)

// Sentinel is a master and a replica under three Sentinels. Its methods end the test when they fail, so they belong
// in the test's goroutine.
type Sentinel struct {
	t         testing.TB
	conf      config
	data      []*Server // the two servers, whichever is the master
	sentinels []*Server
	asks      []*redis.SentinelClient // one for each Sentinel
}

// StartSentinel starts the servers and waits until every Sentinel knows the others and the replica, so that it would
// fail over. The options apply to the master and the replica. A master that is killed or paused is replaced after
// about three seconds; AwaitFailover waits for that. A former master that is restarted becomes a replica after some
// ten seconds.
func StartSentinel(t testing.TB, opts ...Option) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t, conf: newConfig(opts)}
	requirePrograms(t, s.conf)
	if s.conf.secure {
		t.Fatal("redistest: a master under Sentinel cannot have TLS")
	}
	s.conf.args = append([]string{"--repl-diskless-sync-delay", "0"}, s.conf.args...)
	s.data = s.start(2, s.conf)
	s.replicate(s.data[1], s.data[0])

	watch := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d 2\n"+
		// Less is enough on an idle machine; on a busy one, a master that has to wait would be considered dead.
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 4000\n", MasterName, s.data[0].Port())
	if s.conf.password != "" {
		watch += fmt.Sprintf("sentinel auth-pass %s %q\n", MasterName, s.conf.password)
	}
	s.sentinels = s.start(sentinelCount, config{sentinel: watch})
	for _, sentinel := range s.sentinels {
		ask := redis.NewSentinelClient(sentinel.Options())
		t.Cleanup(func() { _ = ask.Close() })
		s.asks = append(s.asks, ask)
	}
	await(t, "Sentinels to know each other", s.ready)
	return s
}

// Client returns a client that asks the Sentinels for the master. The test's cleanup closes it. Each tweak may change
// its options.
func (s *Sentinel) Client(t testing.TB, tweaks ...func(*redis.FailoverOptions)) *redis.Client {
	opt := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs(), Password: s.conf.password}
	for _, tweak := range tweaks {
		tweak(opt)
	}
	client := redis.NewFailoverClient(opt)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Addrs returns the addresses of the Sentinels.
func (s *Sentinel) Addrs() []string {
	addrs := make([]string, len(s.sentinels))
	for i, sentinel := range s.sentinels {
		addrs[i] = sentinel.Addr()
	}
	return addrs
}

// Sentinels returns the Sentinels themselves, to be killed or paused.
func (s *Sentinel) Sentinels() []*Server { return s.sentinels }

// Master returns the server that the Sentinels name as the master. It may be down.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	var master *Server
	await(s.t, "a master", func(ctx context.Context) (err error) {
		master, err = s.agreed(ctx)
		return err
	})
	return master
}

// Replica returns the other server.
func (s *Sentinel) Replica() *Server {
	s.t.Helper()
	if s.Master() == s.data[0] {
		return s.data[1]
	}
	return s.data[0]
}

// AwaitFailover waits until all running Sentinels name another master than the old one, and that server agrees. It
// returns the new master.
func (s *Sentinel) AwaitFailover(old *Server) *Server {
	s.t.Helper()
	var master *Server
	await(s.t, "failover", func(ctx context.Context) error {
		var err error
		if master, err = s.agreed(ctx); err != nil {
			return err
		}
		if master == old {
			return errors.New("the old master is still named")
		}
		client := redis.NewClient(master.Options())
		defer client.Close()
		info, err := client.Info(ctx, "replication").Result()
		if role := infoField(info, "role"); err == nil && role != "master" {
			err = fmt.Errorf("the new master is a %s", role)
		}
		return err
	})
	return master
}

// agreed returns the master that all running Sentinels name.
func (s *Sentinel) agreed(ctx context.Context) (*Server, error) {
	var master *Server
	for i, sentinel := range s.sentinels {
		if !sentinel.running() {
			continue
		}
		addr, err := s.asks[i].GetMasterAddrByName(ctx, MasterName).Result()
		if err != nil {
			return nil, err
		}
		var named *Server
		for _, d := range s.data {
			if strconv.Itoa(d.Port()) == addr[1] {
				named = d
			}
		}
		if named == nil || (master != nil && named != master) {
			return nil, fmt.Errorf("%s names %v as the master", sentinel.Addr(), addr)
		}
		master = named
	}
	if master == nil {
		return nil, errors.New("no Sentinel runs")
	}
	return master, nil
}

// ready returns nil if each Sentinel could take part in a failover now.
func (s *Sentinel) ready(ctx context.Context) error {
	for i, ask := range s.asks {
		master, err := ask.Master(ctx, MasterName).Result()
		if err != nil {
			return err
		}
		others, replicas := master["num-other-sentinels"], master["num-slaves"]
		if master["flags"] != "master" || others != strconv.Itoa(sentinelCount-1) || replicas != "1" {
			return fmt.Errorf("%s sees a %s with %s other Sentinels and %s replicas", s.sentinels[i].Addr(),
				master["flags"], others, replicas)
		}
		list, err := ask.Replicas(ctx, MasterName).Result()
		if err != nil {
			return err
		}
		if len(list) != 1 || list[0]["flags"] != "slave" || list[0]["master-link-status"] != "ok" {
			return fmt.Errorf("%s sees replicas %v", s.sentinels[i].Addr(), list)
		}
	}
	return nil
}

// replicate makes one server the replica of another. It uses a command, not an argument: with an argument, a restarted
// server would return to a master that may have been replaced.
func (s *Sentinel) replicate(replica, master *Server) {
	s.t.Helper()
	client := replica.Client(s.t)
	ctx, cancel := callContext()
	defer cancel()
	if err := client.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(master.Port())).Err(); err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
	await(s.t, "replication", func(ctx context.Context) error {
		info, err := client.Info(ctx, "replication").Result()
		if status := infoField(info, "master_link_status"); err == nil && status != "up" {
			err = fmt.Errorf("the link is %q", status)
		}
		return err
	})
}

// start starts servers, all at once.
func (s *Sentinel) start(count int, conf config) []*Server {
	s.t.Helper()
	servers, err := startServers(s.t, count, conf)
	if err != nil {
		s.t.Fatal(err)
	}
	return servers
}
