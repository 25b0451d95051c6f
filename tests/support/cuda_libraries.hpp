// Stand-ins for the parts of CCCL, RMM, Thrust and CUB that Tern's adapters meet, in the namespaces
// of these libraries. They run on the host: no header of CUDA is needed. Both generations of the
// concepts are here. Also included before the fragments of the guide.

#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };

namespace cuda {

class stream_ref {
 public:
  stream_ref(cudaStream_t stream) noexcept : stream_(stream) {}
  stream_ref(int) = delete;
  stream_ref(std::nullptr_t) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_;
};

template <class R, class P>
concept has_property = requires(const R& resource, P property) {
  static_cast<void>(get_property(resource, property));
};

namespace mr {

struct device_accessible {};
struct host_accessible {};

/// The concepts of CCCL before 3.1.
inline namespace older {
template <class R>
concept host_resource = std::equality_comparable<R> &&
    requires(R& resource, void* address, std::size_t number) {
  { resource.allocate(number, number) } -> std::same_as<void*>;
  { resource.deallocate(address, number, number) } -> std::same_as<void>;
};
template <class R>
concept async_resource = host_resource<R> &&
    requires(R& resource, void* address, std::size_t number, ::cuda::stream_ref on) {
  { resource.allocate_async(number, number, on) } -> std::same_as<void*>;
  { resource.deallocate_async(address, number, number, on) } -> std::same_as<void>;
};
}  // namespace older

/// The concepts since CCCL 3.1.
template <class R>
concept synchronous_resource = std::equality_comparable<R> &&
    requires(R& resource, void* address, std::size_t number) {
  { resource.allocate_sync(number, number) } -> std::same_as<void*>;
  { resource.deallocate_sync(address, number, number) } -> std::same_as<void>;
};
template <class R>
concept resource = synchronous_resource<R> &&
    requires(R& resource, void* address, std::size_t number, ::cuda::stream_ref on) {
  { resource.allocate(on, number, number) } -> std::same_as<void*>;
  { resource.deallocate(on, address, number, number) } -> std::same_as<void>;
};
template <class R, class... Properties>
concept resource_with = resource<R> &&(has_property<R, Properties>&&...);

/// Owns a copy of any resource.
template <class... Properties>
class any_resource {
 public:
  template <class R>
  requires(!std::same_as<R, any_resource> && std::copyable<R> && resource_with<R, Properties...>)
      any_resource(R resource)
      : held_(std::make_shared<Holder<R>>(std::move(resource))) {}

  [[nodiscard]] void* allocate(stream_ref on, std::size_t bytes, std::size_t alignment) {
    return held_->allocate(on, bytes, alignment);
  }
  void deallocate(stream_ref on, void* address, std::size_t bytes, std::size_t alignment) noexcept {
    held_->deallocate(on, address, bytes, alignment);
  }
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return held_->allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* address, std::size_t bytes, std::size_t alignment) noexcept {
    held_->deallocate_sync(address, bytes, alignment);
  }
  friend bool operator==(const any_resource& a, const any_resource& b) {
    return a.held_ == b.held_;
  }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual void* allocate(stream_ref, std::size_t, std::size_t) = 0;
    virtual void deallocate(stream_ref, void*, std::size_t, std::size_t) = 0;
    virtual void* allocate_sync(std::size_t, std::size_t) = 0;
    virtual void deallocate_sync(void*, std::size_t, std::size_t) = 0;
  };
  template <class R>
  struct Holder final : Held {
    explicit Holder(R held) : resource(std::move(held)) {}
    void* allocate(stream_ref on, std::size_t bytes, std::size_t alignment) override {
      return resource.allocate(on, bytes, alignment);
    }
    void deallocate(stream_ref on, void* at, std::size_t bytes, std::size_t alignment) override {
      resource.deallocate(on, at, bytes, alignment);
    }
    void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
      return resource.allocate_sync(bytes, alignment);
    }
    void deallocate_sync(void* at, std::size_t bytes, std::size_t alignment) override {
      resource.deallocate_sync(at, bytes, alignment);
    }
    R resource;
  };
  std::shared_ptr<Held> held_;
};

}  // namespace mr
}  // namespace cuda

namespace rmm {

class cuda_stream_view {
 public:
  cuda_stream_view(cudaStream_t stream) noexcept : stream_(stream) {}
  [[nodiscard]] cudaStream_t value() const noexcept { return stream_; }
  operator cudaStream_t() const noexcept { return stream_; }

 private:
  cudaStream_t stream_;
};

namespace mr {

using any_device_resource = ::cuda::mr::any_resource<::cuda::mr::device_accessible>;

inline std::shared_ptr<any_device_resource>& current() {
  static std::shared_ptr<any_device_resource> instance;
  return instance;
}
inline void set_current_device_resource(any_device_resource resource) {
  current() = std::make_shared<any_device_resource>(std::move(resource));
}
/// Like the resource of the library, it allocates for streams; here from the current resource.
class cuda_async_memory_resource {
 public:
  [[nodiscard]] void* allocate(::cuda::stream_ref on, std::size_t bytes, std::size_t alignment) {
    return current()->allocate(on, bytes, alignment);
  }
  void deallocate(::cuda::stream_ref on, void* at, std::size_t bytes, std::size_t alignment) {
    current()->deallocate(on, at, bytes, alignment);
  }
};

}  // namespace mr
}  // namespace rmm

namespace thrust {

template <class T>
class device_ptr {
 public:
  using element_type = T;
  template <class U>
  struct rebind {
    using other = device_ptr<U>;
  };
  device_ptr() = default;
  explicit device_ptr(T* address) noexcept : address_(address) {}
  [[nodiscard]] T* get() const noexcept { return address_; }
  friend device_ptr operator+(device_ptr a, std::size_t count) {
    return device_ptr(a.address_ + count);
  }
  friend std::ptrdiff_t operator-(device_ptr a, device_ptr b) { return a.address_ - b.address_; }

 private:
  T* address_ = nullptr;
};

/// Allocates and frees like the container of the library. Has no elements.
template <class T, class Allocator>
class device_vector {
 public:
  device_vector(std::size_t count, Allocator allocator)
      : allocator_(std::move(allocator)), begin_(allocator_.allocate(count)), count_(count) {}
  device_vector(const device_vector&) = delete;
  device_vector& operator=(const device_vector&) = delete;
  ~device_vector() { allocator_.deallocate(begin_, count_); }
  [[nodiscard]] typename Allocator::pointer begin() const { return begin_; }
  [[nodiscard]] typename Allocator::pointer end() const { return begin_ + count_; }

 private:
  Allocator allocator_;
  typename Allocator::pointer begin_;
  std::size_t count_;
};

namespace cuda {

template <class Allocator>
struct policy {
  Allocator* allocator;
  cudaStream_t stream = nullptr;
  [[nodiscard]] policy on(cudaStream_t other) const { return {allocator, other}; }
};
struct par_t {
  template <class Allocator>
  [[nodiscard]] policy<Allocator> operator()(Allocator& allocator) const {
    return {&allocator};
  }
};
inline constexpr par_t par, par_nosync;

}  // namespace cuda

/// Only allocates and frees temporary storage: twice, as large as the input, and once nothing.
template <class Allocator, class Iterator>
void sort(const cuda::policy<Allocator>& with, Iterator first, Iterator last) {
  static_assert(std::same_as<typename Allocator::value_type, char>);
  for (const std::ptrdiff_t bytes : {last - first, last - first, std::ptrdiff_t{0}}) {
    char* const storage = with.allocator->allocate(bytes);
    with.allocator->deallocate(storage, static_cast<std::size_t>(bytes));
  }
}

}  // namespace thrust

namespace cub {

struct DeviceScan {
  /// What a call was made with.
  struct Call {
    void* storage;
    std::size_t bytes;
    cudaStream_t stream;
  };
  static std::vector<Call>& calls() {
    static std::vector<Call> instance;
    return instance;
  }
  template <class In, class Out>
  static cudaError_t ExclusiveSum(void* storage, std::size_t& bytes, In /*in*/, Out /*out*/,
                                  std::size_t count, cudaStream_t stream) {
    if (storage == nullptr) bytes = count / 2;
    calls().push_back({storage, bytes, stream});
    return count == 13 ? cudaErrorInvalidValue : cudaSuccess;
  }
};

}  // namespace cub
