module github.com/hybridlimit/hybrid/examples/grpc

go 1.26.0

replace (
	github.com/hybridlimit/hybrid => ../..
	github.com/hybridlimit/hybrid/grpclimit => ../../grpclimit
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/hybridlimit/hybrid v0.0.0
	github.com/hybridlimit/hybrid/grpclimit v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c
	google.golang.org/grpc v1.85.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.7 // indirect
	github.com/puzpuzpuz/xsync/v4 v4.5.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
