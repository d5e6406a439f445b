package run

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// checkTimeout is the timeout of one readiness query to the admin port. The kubelet repeats the probe.
const checkTimeout = 2 * time.Second

// checkReady queries the readiness of the adapter in this pod. The kubelet runs it as an exec probe, because a
// network probe comes from outside the pod and cannot reach a loopback address.
func checkReady(ctx context.Context, f proxyFlags) error {
	addr := f.admin
	if at, err := netip.ParseAddrPort(addr); err != nil {
		return usageError(fmt.Errorf("--admin %q is not an address and port", addr))
	} else if at.Port() == 0 {
		b, err := os.ReadFile(filepath.Join(f.state, "address"))
		if err != nil {
			return exitCode{exitNotReady, err}
		}
		var a boundAddresses
		if err := json.Unmarshal(b, &a); err != nil {
			return exitCode{exitNotReady, err}
		}
		addr = a.Admin
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return usageError(err)
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return exitCode{exitNotReady, err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return exitCode{exitNotReady, fmt.Errorf("not ready (%s)", res.Status)}
	}
	return nil
}
