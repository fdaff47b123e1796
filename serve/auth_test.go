package serve

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func TestAuth(t *testing.T) {
	onStage(t, Options{Headers: true}, func(t *testing.T, s stage) {
		var body string
		get := func(query string, headers ...string) (int, http.Header) {
			r := httptest.NewRequest("GET", "/auth?"+query, nil)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			w := httptest.NewRecorder()
			s.Auth().ServeHTTP(w, r)
			body = w.Body.String()
			return w.Code, w.Header()
		}
		const two = "domain=shop&descriptor=user:X-User,path=/search"
		for i, want := range []int{200, 200, 429, 429} {
			status, header := get(two, "X-User", "42")
			require.Equal(t, want, status)
			require.Equal(t, fmt.Sprint(max(0, 1-i)), header.Get("RateLimit-Remaining"))
			require.Equal(t, want == 429, header.Get("Retry-After") == "1")
		}
		status, header := get(two+"&status=403", "X-User", "42")
		require.Equal(t, []any{403, "1"}, []any{status, header.Get("Retry-After")})
		status, _ = get(two, "X-User", "43&descriptor=banned=1")
		require.Equal(t, 200, status)
		status, _ = get(two)
		require.Equal(t, 200, status, "without the header there is no descriptor")
		status, _ = get("domain=shop&descriptor=user:X-User&descriptor=banned=1")
		require.Equal(t, 429, status)
		for _, query := range []string{"", "domain=shop", "descriptor=a=1", "domain=shop&descriptor=a", "domain=shop&descriptor=a=", "domain=shop&descriptor=:X", "domain=shop&descriptor=host:host", "domain=shop&descriptor=a=1&status=200", "%zz"} {
			status, _ = get(query)
			require.Equal(t, 400, status, query)
		}
		s.Down()
		status, _ = get(two, "X-User", "42")
		require.Equal(t, 503, status)
		require.Equal(t, "no decision\n", body, "clients may see it")
	})
}

// TestNginx asks through a real nginx with example/nginx.conf: it counts by a header, and answers 429 itself.
func TestNginx(t *testing.T) {
	redistest.Require(t, "nginx")
	files := func() ([]Source, error) {
		return []Source{{"f", []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]")}}, nil
	}
	env := ratelimittest.New(t)
	s, err := New(env.Client(), Options{Files: files, Headers: true})
	require.NoError(t, err)
	var hangs atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/auth", func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			<-r.Context().Done()
		}
		s.Auth().ServeHTTP(w, r)
	})
	service := httptest.NewServer(mux)
	defer service.Close()
	free := listen(t)
	address := free.Addr().String()
	require.NoError(t, free.Close())

	text, err := os.ReadFile("example/nginx.conf")
	require.NoError(t, err)
	dir := t.TempDir()
	config := fmt.Sprintf("daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error;\n", dir) +
		replaced(t, string(text), map[string]string{
			"listen 8000;": "listen " + address + ";", "ratelimit:8080": service.Listener.Addr().String(),
			"http {": fmt.Sprintf("http { access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;", dir),
		})
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	nginx := exec.Command("nginx", "-e", dir+"/error", "-p", dir, "-c", file)
	nginx.Stderr = os.Stderr
	require.NoError(t, nginx.Start())
	defer func() {
		_ = nginx.Process.Kill()
		_ = nginx.Wait()
	}()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	for i, want := range []int{200, 200, 429, 429} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+address+"/", nil)
		require.NoError(t, err)
		r.Header.Set("X-User", "42")
		status, header, body := do(t, r)
		require.Equal(t, want, status, body)
		require.Equal(t, want == 429, header.Get("Retry-After") != "", i)
		require.Equal(t, want == 200, body == "hello\n")
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+address+"/", nil)
	require.NoError(t, err)
	status, _, _ := do(t, r)
	require.Equal(t, 200, status)

	r.Header.Set("X-User", "42")
	for _, fault := range []func(){env.Down, func() { hangs.Store(true) }, service.Close} {
		fault()
		status, _, body := do(t, r)
		require.Equal(t, 200, status, "without a decision it is allowed: %s", body)
	}
}
