//lint:file-ignore SA1019 the guide is for those whose code is of before the deprecation

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
