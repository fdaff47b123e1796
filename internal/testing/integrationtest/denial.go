package integrationtest

import (
	"fmt"
	"time"
)

// AtOnce is, in place of a window, that of a limit on calls at once.
const AtOnce time.Duration = 0

// DenialTexts are the texts in the error of a call that is denied: its message, and the description
// of its violation, which is empty where there is no limit.
func DenialTexts(policy string, limit int, window, delay time.Duration) (message, description string) {
	message = fmt.Sprintf("the limit %q is used up, retry after %v", policy, delay)
	switch {
	case limit > 0 && window == AtOnce:
		description = fmt.Sprintf("limit %d, at once", limit)
	case limit > 0:
		description = fmt.Sprintf("limit %d, window %v", limit, window)
	}
	return message, description
}
