// Includes everything that most programs use: devices and streams, buffers and arrays, unified and
// managed buffers, resources, kernels and tables.
//
//   #include <tern/tern.hpp>
//
// Programs that count compile time include the headers they need instead. Not included, because few
// programs need them: exchange with other libraries (tern/interop), the simulated device's controls
// (tern/backends/sim.hpp), traces (tern/trace).

#pragma once

#include "tern/backends/catalog.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/growing_array.hpp"
#include "tern/buffer/pausable_resource.hpp"
#include "tern/buffer/scalar.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/coherence/managed_buffer.hpp"
#include "tern/coherence/prefetch_plan.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/error.hpp"
#include "tern/core/version.hpp"
#include "tern/device/device.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/fence.hpp"
#include "tern/launch/graph.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/launch/use_scope.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/logging_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/pressure_resource.hpp"
#include "tern/memory/tracking_resource.hpp"
#include "tern/table/table.hpp"
