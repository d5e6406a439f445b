package server

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// newLogger returns the log of a role, on standard error. quieten redirects the logs of libraries to it and limits them to warnings and errors.
// The caller must call quieten once, before it uses any of the libraries.
func newLogger(f flags) (log *slog.Logger, quieten func(), err error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, nil, usageError{fmt.Errorf("--log-level %q: debug, info, warn or error", f.logLevel)}
	}
	to := func(level slog.Level) slog.Handler {
		return slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	return slog.New(to(level)), func() {
		quiet := logr.FromSlogHandler(to(max(level, slog.LevelWarn)))
		ctrllog.SetLogger(quiet)
		klog.SetLogger(quiet)
	}, nil
}
