package redistest

// Option changes how a server is started.
type Option func(*config)

type config struct {
	args     []string
	password string
	secure   bool
	faketime bool
	cluster  bool
	sentinel string // the configuration file's text, without its port and directory
}

func newConfig(opts []Option) config {
	var c config
	for _, o := range opts {
		o(&c)
	}
	return c
}

// Args adds arguments to the server's command line, such as Args("--appendonly", "yes"). They come after the
// defaults (no snapshots, little logging) and override them.
func Args(args ...string) Option {
	return func(c *config) { c.args = append(c.args, args...) }
}

// Password sets the password of the default user. Server.Client knows it.
func Password(password string) Option {
	return func(c *config) { c.password = password }
}

// ACL adds a user, with rules as in ACL SETUSER: ACL("alice", "on", ">secret", "~ratelimit:*", "+@all"). The default
// user does not change, and Server.Client still uses it.
func ACL(user string, rules ...string) Option {
	return func(c *config) {
		c.args = append(c.args, "--user", user)
		c.args = append(c.args, rules...)
	}
}

// TLS makes the server accept TLS only, with a certificate made for this run. Server.Client trusts the certificate; other
// clients can use Server.TLSConfig.
func TLS() Option { return func(c *config) { c.secure = true } }

// Faketime starts the server with a clock that Server.StepClock moves and Server.HoldClock stops. It skips the test when
// libfaketime is not installed.
func Faketime() Option { return func(c *config) { c.faketime = true } }
