//lint:file-ignore SA1019 services still have these calls, which httprate has deprecated

package before

import (
	"net/http"
	"time"

	"github.com/go-chi/httprate"
)

func perAddress(next http.Handler) http.Handler {
	limit := httprate.Limit(100, time.Minute, httprate.WithKeyFuncs(httprate.KeyByIP, httprate.KeyByEndpoint))
	return limit(next)
}
