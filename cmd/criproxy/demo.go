package main

import (
	"context"
	"io"
)

func demo(ctx context.Context, args []string, out, errOut io.Writer) error { return nil }
